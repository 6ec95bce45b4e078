"""Adjusts logits on a CPU in one call of the native operator, which touches only affected tokens.

Counts are kept as lists of the tokens that are in a text. Nothing is pending on a CPU: the previous step is over, so
its tokens are read.
"""

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.backends.adjusting.recent import Recent
from engine.backends.adjusting.row_changes import RowChange, RowChanges
from engine.backends.native.sampling.token_counts import Listed, TokenCounts
from engine.constraints import Masks
from engine.model.batch import Sampled
from engine.plan import Work

_ROW_CHANGE_STRUCT = struct.Struct("=qqqqQQQQQQddd")
"""Mirrors `struct row_change` in adjust.c."""


class CountedText(NamedTuple):
    """Token counts of a text, and how much of it they include."""

    text: Sequence[int]  # the sequence's own array; another array is another text
    tokens: int  # number of leading tokens counted
    counts: TokenCounts


class NativeAdjuster:
    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native
        self._changes = RowChanges()
        self._counted: Recent[CountedText] = Recent()

    def adjust(self, logits: Tensor, works: Sequence[Work], before: Sampled | None, masks: Masks | None) -> Tensor:
        logits = logits.float()
        assert logits.is_contiguous()
        sampled = before.tokens if before is not None else None
        changes = self._changes.of(works, logits.shape[1], before, masks)
        alive: list[NDArray[np.int32]] = []
        packed = [self._packed(change, sampled, alive) for change in changes]
        self._native.baton_adjust(logits.data_ptr(), logits.shape[1], b"".join(packed), len(packed))
        self._counted.forget(len(works))
        return logits

    def _packed(self, change: RowChange, sampled: Tensor | None, alive: list[NDArray[np.int32]]) -> bytes:
        changes, sampling, bits = change.logit_changes, change.logit_changes.sampling, change.bits
        pending = None
        if change.pending is not None:
            assert sampled is not None
            pending = int(sampled[change.pending])
        forbidden = change.forbidden
        if pending is not None:
            forbidden = forbidden + [token for token, newest in change.conditional.tolist() if newest == pending]
        ids = np.array(forbidden, np.int32)
        alive.append(ids)
        listed = None
        if changes.penalizes:
            listed = self._counts(change, pending)
            alive += listed
        return _ROW_CHANGE_STRUCT.pack(
            change.row,
            len(changes.bias_ids),
            len(listed.ids) if listed is not None else 0,
            len(ids),
            changes.bias_ids.ctypes.data,
            changes.biases.ctypes.data,
            listed.ids.ctypes.data if listed is not None else 0,
            listed.counts.ctypes.data if listed is not None else 0,
            ids.ctypes.data,
            bits.ctypes.data if bits is not None else 0,
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )

    def _counts(self, change: RowChange, pending: int | None) -> Listed:
        """Returns a text's counts, the pending token included; only new tokens are counted.

        A row of draft tokens has the counts of its work's first row, plus the draft tokens on its path.
        """
        work = change.work
        text = work.tokens
        assert text is not None
        counted = self._counted.use(work.sequence)
        if work.proposed:
            assert counted is not None and counted.text is text, "a row of draft tokens before its work's first"
            return counted.counts.behind(work.proposed)
        if counted is None or counted.text is not text or counted.tokens > len(text):
            prompt = text[: work.prompt_tokens] if change.logit_changes.counts_prompt else ()
            counted = CountedText(text, work.prompt_tokens, TokenCounts(prompt))
        counted.counts.add(text[counted.tokens :])
        if pending is not None:
            counted.counts.add([pending])
        self._counted.keep(work.sequence, CountedText(text, len(text) + (pending is not None), counted.counts))
        return counted.counts.listed()
