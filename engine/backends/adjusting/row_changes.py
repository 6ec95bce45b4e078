"""Computes each row's logit changes as far as the host knows them, for every adjuster."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.backends.adjuster import is_adjusted
from engine.backends.adjusting.logit_changes import TOKENS_PER_WORD, LogitChanges
from engine.backends.adjusting.recent import Recent
from engine.constraints import Masks
from engine.model.batch import Sampled, sample_indices
from engine.plan import Work

NO_CONDITIONAL_TOKENS: NDArray[np.int32] = np.empty((0, 2), np.int32)


class RowChange(NamedTuple):
    """Changes of one row's logits."""

    row: int
    work: Work
    logit_changes: LogitChanges
    pending: int | None  # index of the text's last token among the previous step's tokens; None: the host knows it
    forbidden: list[int]  # forbidden tokens, besides tokens without a bit in `bits`
    conditional: NDArray[np.int32]  # [n, 2]: token, and the pending token that makes it forbidden
    bits: NDArray[np.int32] | None  # [ceil(vocab / 32)] bits of allowed tokens; None: all


class RowChanges:
    """Prepares the changes of samplings, and caches them by sequence."""

    def __init__(self) -> None:
        self._by_sequence: Recent[LogitChanges] = Recent()

    def of(self, works: Sequence[Work], vocab: int, before: Sampled | None, masks: Masks | None) -> list[RowChange]:
        """Lists the changed rows, in order; arguments as in `Adjuster.adjust`."""
        masked = dict(zip(masks.rows, masks.bits, strict=True)) if masks is not None else {}
        indices: dict[int, int] | None = None
        changes = []
        for row, work in enumerate(works):
            if not is_adjusted(work):
                continue
            pending = None
            if is_pending(work):
                if indices is None:
                    assert before is not None, "a pending token, but no step before it"
                    indices = sample_indices(before.works)
                pending = indices[work.sequence]
            logit_changes, grammar = self._changes_of(work, vocab), masked.get(row)
            forbidden, conditional = _bad_words(logit_changes, work, pending)
            bits = logit_changes.allowed
            if grammar is not None:
                bits = grammar if bits is None else grammar & bits
                assert len(bits) == -(-vocab // TOKENS_PER_WORD), "a mask of another vocabulary"
            if work.banned and (grammar is None or bits is None or leaves_others(bits, work.banned)):
                forbidden = forbidden + [token for token in work.banned if token < vocab]
            changes.append(RowChange(row, work, logit_changes, pending, forbidden, conditional, bits))
        self._by_sequence.forget(len(works))
        return changes

    def _changes_of(self, work: Work, vocab: int) -> LogitChanges:
        assert work.sampling is not None
        changes = self._by_sequence.use(work.sequence)
        if changes is None or changes.sampling is not work.sampling:
            changes = LogitChanges(work.sampling, vocab)
            self._by_sequence.keep(work.sequence, changes)
        return changes


def is_pending(work: Work) -> bool:
    """Returns whether `Work.tokens` lacks the text's last token, which only the previous step knows yet."""
    if work.tokens is None:
        return False
    return work.output_index > len(work.tokens) + len(work.proposed) - work.prompt_tokens


def _bad_words(changes: LogitChanges, work: Work, pending: int | None) -> tuple[list[int], NDArray[np.int32]]:
    """Returns the tokens that would complete a bad word, and pairs (token, pending token) that would complete one."""
    words, tokens = changes.bad_words, work.tokens
    if words is None or tokens is None:
        return [], NO_CONDITIONAL_TOKENS
    if pending is None:
        text = [*tokens, *work.proposed] if work.proposed else tokens
        return words.completing(text, work.prompt_tokens), NO_CONDITIONAL_TOKENS
    return words.single, words.conditional(tokens, work.prompt_tokens)


def leaves_others(bits: NDArray[np.int32], banned: Sequence[int]) -> bool:
    """Returns whether a mask allows any token that is not banned."""
    others = bits.view(np.uint32).copy()
    for token in banned:
        if token < TOKENS_PER_WORD * len(others):
            others[token // TOKENS_PER_WORD] &= ~np.uint32(1 << token % TOKENS_PER_WORD)
    return bool(others.any())
