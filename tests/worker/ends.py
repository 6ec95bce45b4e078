"""What every accepted (request, sample, attempt) is owed: the right tokens, then one end and nothing behind it."""

from core.ids import SequenceKey
from core.messages import Emitted, Limits, Sampling
from tests.engine.strict_executor import next_token

Attempt = tuple[SequenceKey, int]


class Ends:
    """A book of attempts. Raises AssertionError for what nobody should hear."""

    def __init__(self) -> None:
        self.ends: dict[Attempt, str] = {}
        self._texts: dict[Attempt, tuple[list[int], int, Sampling, Limits]] = {}  # of all that were accepted

    def accept(self, attempt: Attempt, tokens: list[int], prompt: int, sampling: Sampling, limits: Limits) -> None:
        """From now on this attempt is owed an end; `tokens` are the prompt and what was emitted of it."""
        assert attempt not in self._texts
        self._texts[attempt] = (list(tokens), prompt, sampling, limits)

    def open(self) -> list[Attempt]:
        """Those that have no end."""
        return [attempt for attempt in self._texts if attempt not in self.ends]

    def began(self, keys: list[SequenceKey], attempt: int) -> bool:
        """Whether this attempt of any of them was accepted."""
        return any((key, attempt) in self._texts for key in keys)

    def end(self, attempt: Attempt, how: str) -> None:
        """The one end."""
        assert attempt in self._texts, f"{attempt} ends ({how}), and never began"
        assert attempt not in self.ends, f"{attempt} ended as {self.ends[attempt]}, and now again: {how}"
        self.ends[attempt] = how

    def killed(self, key: SequenceKey, upto: int) -> None:
        """Nobody wants to hear of these any more."""
        for attempt in [each for each in self.open() if each[0] == key and each[1] <= upto]:
            self.end(attempt, "killed")

    def emit(self, emitted: Emitted) -> None:
        """Tokens that a gateway gets."""
        attempt = SequenceKey(emitted.request, emitted.sample), emitted.attempt
        assert attempt in self._texts and attempt not in self.ends, f"tokens of {attempt}, {self.ends.get(attempt)}"
        text, prompt, sampling, limits = self._texts[attempt]
        assert emitted.index == len(text) - prompt, "each index once, in order"
        for token in emitted.token_ids:
            assert token == next_token(text, sampling, emitted.sample, len(text) - prompt)
            text.append(token)
        stopped = text[-1] in limits.stop_token_ids
        finish = "stop" if stopped else "length" if len(text) - prompt == limits.max_tokens else None
        assert emitted.finish == finish
        if finish:
            self.end(attempt, "finished")
