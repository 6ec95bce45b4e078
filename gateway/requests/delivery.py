"""Takes the output tokens of one sample, each once and in order, with their scores, whichever worker sends it first."""

from typing import NamedTuple

from contracts.messages.gateway import Emitted
from contracts.messages.sampling import Finish
from contracts.scores import Scores

EARLY = 256  # messages that may wait behind a gap


class Fresh(NamedTuple):
    """Holds tokens that nobody has seen before, and the reason of the end if they are the last."""

    tokens: list[int]
    finish: Finish | None
    scores: Scores | None = None  # of these tokens, if the request wants them


class Delivery:
    """Keeps the tokens that were delivered, and messages that are too early, as behind a gap."""

    def __init__(self) -> None:
        self.tokens: list[int] = []  # delivered
        self.prompt_scores: Scores | None = None  # came with the first token
        self._early: dict[int, Emitted] = {}  # by the index of their first token

    @property
    def gap(self) -> bool:
        """Tells whether tokens are here whose predecessors are not."""
        return bool(self._early)

    def take(self, emitted: Emitted) -> Fresh:
        """Takes what a worker has sent; returns what is new of it, and of the early messages that it lets follow."""
        if emitted.index > len(self.tokens):
            if len(self._early) < EARLY:
                self._early[emitted.index] = emitted
            return Fresh([], None)
        begin = len(self.tokens)
        scores: list[Scores] = []
        finish = self._append(emitted, scores)
        while finish is None and (ready := self._ready()) is not None:
            finish = self._append(self._early.pop(ready), scores)
        return Fresh(self.tokens[begin:], finish, Scores.joined(scores) if scores else None)

    def take_next(self, emitted: Emitted) -> bool:
        """Takes what is nothing but the next tokens, as nearly everything is. Returns whether it was."""
        if emitted.index != len(self.tokens) or self._early or not emitted.token_ids:
            return False
        if emitted.finish is not None or emitted.scores is not None or emitted.prompt_scores is not None:
            return False
        self.tokens += emitted.token_ids
        return True

    def forget_early(self) -> None:
        """Drops what waits behind a gap: its attempt is over."""
        self._early.clear()

    def _ready(self) -> int | None:
        return next((index for index in sorted(self._early) if index <= len(self.tokens)), None)

    def _append(self, emitted: Emitted, scores: list[Scores]) -> Finish | None:
        """Appends the unseen tail of `emitted`, and its `scores`. The end counts only with its last token."""
        seen, count = len(self.tokens) - emitted.index, len(emitted.token_ids)
        if seen > count:
            return None  # a repetition of the past
        self.tokens += emitted.token_ids[seen:]
        if self.prompt_scores is None:
            self.prompt_scores = emitted.prompt_scores
        if emitted.scores is not None and seen < count:
            scores.append(emitted.scores.part(seen, count))
        return emitted.finish
