"""Puts the output tokens of one sample in order, each once, with their scores, whichever worker sends them first."""

from contracts.messages.gateway import Emitted
from contracts.messages.sampling import Finish
from contracts.scores import Scores

MAX_EARLY_MESSAGES = 256  # messages that wait for earlier tokens


class Delivery:
    """The delivered tokens, and messages that came before their predecessors (behind a gap)."""

    def __init__(self) -> None:
        self.tokens: list[int] = []  # delivered
        self.prompt_scores: Scores | None = None  # came with the first token
        self.vector = b""  # came with the end, fp32
        self._early: dict[int, Emitted] = {}  # by the index of their first token

    @property
    def gap(self) -> bool:
        return bool(self._early)

    def take(self, emitted: Emitted) -> Emitted:
        """Returns the new part of a message, joined with early messages that continue it.

        Nearly every message has exactly the next tokens, and is returned unchanged.
        """
        begin = len(self.tokens)
        if emitted.index == begin and emitted.token_ids and not self._early:
            self.tokens += emitted.token_ids
            if emitted.prompt_scores is not None and self.prompt_scores is None:
                self.prompt_scores = emitted.prompt_scores
            return emitted
        if emitted.index > begin:
            if len(self._early) < MAX_EARLY_MESSAGES:
                self._early[emitted.index] = emitted
            return Emitted(emitted.key, begin, [])
        scores: list[Scores] = []
        finish = self._append(emitted, scores)
        while finish is None and (ready := self._ready()) is not None:
            finish = self._append(self._early.pop(ready), scores)
        tokens = self.tokens[begin:]
        scored = sum(map(len, scores)) == len(tokens)  # False if a worker left out the scores of some tokens
        return Emitted(emitted.key, begin, tokens, finish, scores=Scores.joined(scores) if scores and scored else None)

    def forget_early(self) -> None:
        self._early.clear()

    def _ready(self) -> int | None:
        return next((index for index in sorted(self._early) if index <= len(self.tokens)), None)

    def _append(self, emitted: Emitted, scores: list[Scores]) -> Finish | None:
        """Appends the unseen tokens of `emitted`, and their `scores`. A finish counts only with the last token."""
        seen, count = len(self.tokens) - emitted.index, len(emitted.token_ids)
        if seen > count:
            return None  # all tokens are known
        self.tokens += emitted.token_ids[seen:]
        self.vector = emitted.vector or self.vector
        if self.prompt_scores is None:
            self.prompt_scores = emitted.prompt_scores
        if emitted.scores is not None and seen < count:
            scores.append(emitted.scores.part(seen, count))
        return emitted.finish
