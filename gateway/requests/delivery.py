"""Takes the output tokens of one sample, each once and in order, with their scores, whichever worker sends it first."""

from contracts.messages.gateway import Emitted
from contracts.messages.sampling import Finish
from contracts.scores import Scores

MAX_EARLY_MESSAGES = 256  # that wait for the tokens before theirs


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

    def take(self, emitted: Emitted) -> Emitted:
        """Returns the new part of a message, joined with the early messages that can follow it now.

        Nearly every message has the next tokens, all of them new: it is returned as it is.
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
        scored = sum(map(len, scores)) == len(tokens)  # not where a worker left the scores of some tokens out
        return Emitted(emitted.key, begin, tokens, finish, scores=Scores.joined(scores) if scores and scored else None)

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
