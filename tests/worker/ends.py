"""Checks what every accepted (request, sample, attempt) gets: the right tokens, then one end and nothing behind it."""

from contracts.ids import AttemptKey
from contracts.messages.gateway import Emitted
from contracts.messages.sampling import Limits, Sampling
from tests.engine.strict_executor import next_token


class Ends:
    """Keeps a book of attempts. Raises AssertionError for what no gateway should get."""

    def __init__(self) -> None:
        self.ends: dict[AttemptKey, str] = {}
        self._texts: dict[AttemptKey, tuple[list[int], int, Sampling, Limits]] = {}  # tokens, prompt length, …

    def accept(self, attempt: AttemptKey, tokens: list[int], prompt: int, sampling: Sampling, limits: Limits) -> None:
        """Enters an attempt, which is owed an end from now on; `tokens` are the prompt and what was emitted of it."""
        assert attempt not in self._texts
        self._texts[attempt] = (list(tokens), prompt, sampling, limits)

    def open(self) -> list[AttemptKey]:
        """Lists the attempts that have no end."""
        return [attempt for attempt in self._texts if attempt not in self.ends]

    def began(self, attempts: list[AttemptKey]) -> bool:
        """Tells whether any of these attempts was accepted."""
        return any(attempt in self._texts for attempt in attempts)

    def end(self, attempt: AttemptKey, how: str) -> None:
        """Notes an attempt's end, which has to be its only one."""
        assert attempt in self._texts, f"{attempt} ends ({how}), and never began"
        assert attempt not in self.ends, f"{attempt} ended as {self.ends[attempt]}, and now again: {how}"
        self.ends[attempt] = how

    def killed(self, upto: AttemptKey) -> None:
        """Ends attempts at this sample up to this one, of which nothing may come any more."""
        for attempt in [each for each in self.open() if each.of == upto.of and each.attempt <= upto.attempt]:
            self.end(attempt, "killed")

    def emit(self, emitted: Emitted) -> None:
        """Checks tokens that a gateway gets."""
        attempt = emitted.key
        assert attempt in self._texts and attempt not in self.ends, f"tokens of {attempt}, {self.ends.get(attempt)}"
        text, prompt, sampling, limits = self._texts[attempt]
        assert emitted.index == len(text) - prompt, "each index once, in order"
        for token in emitted.token_ids:
            assert token == next_token(text, sampling, attempt.sample, len(text) - prompt)
            text.append(token)
        stopped = text[-1] in limits.stop_token_ids
        finish = "stop" if stopped else "length" if len(text) - prompt == limits.max_tokens else None
        assert emitted.finish == finish
        if finish:
            self.end(attempt, "finished")
