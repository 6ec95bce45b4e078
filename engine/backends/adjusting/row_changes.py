"""Computes each row's logit changes as far as the host knows them, for every adjuster."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.backends.adjuster import is_adjusted
from engine.backends.adjusting.asked import TOKENS_PER_WORD, LogitChanges
from engine.backends.adjusting.recent import Recent
from engine.constraints import Masks
from engine.model.batch import Sampled, place_of_samples
from engine.plan import Work

NONE_DEPENDS: NDArray[np.int32] = np.empty((0, 2), np.int32)


class RowChange(NamedTuple):
    """Changes of one row's logits."""

    row: int
    work: Work
    asked: LogitChanges
    pending: int | None  # index of the text's last token among the previous step's tokens; None: the host knows it
    forbidden: list[int]  # forbidden tokens, besides tokens without a bit in `bits`
    depending: NDArray[np.int32]  # [n, 2]: token, and the pending token that makes it forbidden
    bits: NDArray[np.int32] | None  # [ceil(vocab / 32)] bits of allowed tokens; None: all


class RowChanges:
    """Prepares the changes of samplings, and caches them by sequence."""

    def __init__(self) -> None:
        self._asked: Recent[LogitChanges] = Recent()

    def of(self, works: Sequence[Work], vocab: int, before: Sampled | None, masks: Masks | None) -> list[RowChange]:
        """Lists the changed rows, in order; arguments as in `Adjuster.adjust`."""
        masked = dict(zip(masks.rows, masks.bits, strict=True)) if masks is not None else {}
        places: dict[int, int] | None = None
        changes = []
        for row, work in enumerate(works):
            if not is_adjusted(work):
                continue
            pending = None
            if is_pending(work):
                if places is None:
                    assert before is not None, "a pending token, but no step before it"
                    places = place_of_samples(before.works)
                pending = places[work.sequence]
            asked, grammar = self._asked_by(work, vocab), masked.get(row)
            forbidden, depending = _bad_words(asked, work, pending)
            bits = asked.allowed
            if grammar is not None:
                bits = grammar if bits is None else grammar & bits
                assert len(bits) == -(-vocab // TOKENS_PER_WORD), "a mask of another vocabulary"
            if work.banned and (grammar is None or bits is None or leaves_others(bits, work.banned)):
                forbidden = forbidden + [token for token in work.banned if token < vocab]
            changes.append(RowChange(row, work, asked, pending, forbidden, depending, bits))
        self._asked.forget(len(works))
        return changes

    def _asked_by(self, work: Work, vocab: int) -> LogitChanges:
        assert work.sampling is not None
        asked = self._asked.use(work.sequence)
        if asked is None or asked.sampling is not work.sampling:
            asked = LogitChanges(work.sampling, vocab)
            self._asked.keep(work.sequence, asked)
        return asked


def is_pending(work: Work) -> bool:
    """Returns whether `Work.tokens` lacks the text's last token, which only the previous step knows yet."""
    if work.tokens is None:
        return False
    return work.output_index > len(work.tokens) + len(work.proposed) - work.prompt_tokens


def _bad_words(asked: LogitChanges, work: Work, pending: int | None) -> tuple[list[int], NDArray[np.int32]]:
    """Returns the tokens that would complete a bad word, and pairs (token, pending token) that would complete one."""
    words, tokens = asked.bad_words, work.tokens
    if words is None or tokens is None:
        return [], NONE_DEPENDS
    if pending is None:
        text = [*tokens, *work.proposed] if work.proposed else tokens
        return words.completing(text, work.prompt_tokens), NONE_DEPENDS
    return words.single, words.depending(tokens, work.prompt_tokens)


def leaves_others(bits: NDArray[np.int32], banned: Sequence[int]) -> bool:
    """Returns whether a mask allows any token that is not banned."""
    left = bits.view(np.uint32).copy()
    for token in banned:
        if token < TOKENS_PER_WORD * len(left):
            left[token // TOKENS_PER_WORD] &= ~np.uint32(1 << token % TOKENS_PER_WORD)
    return bool(left.any())
