"""Adjusts logits on a device without waiting for it: the host's data is copied to the device at once.

Only the needed operators are launched: biases, then penalties, then masks, then single tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.backends.adjusting.device_counts import DeviceCounts
from engine.backends.adjusting.row_changes import RowChange, RowChanges
from engine.constraints import Masks
from engine.device import to_device_together
from engine.model.batch import Sampled
from engine.plan import Work

NOT_PENDING = -1
"""Replaces an index into the previous step's tokens if the host knows the token, or it does not matter."""
NO_ENTRIES = np.empty((4, 0), np.int32)


class Operators(Protocol):
    """Changes fp32 logits `[rows, vocab]`, contiguous, in place."""

    def penalize(self, logits: Tensor, counts: Tensor, texts: Tensor, penalties: Tensor, sampled: Tensor) -> None:
        """Adds the newest token of each text to its row of `counts`, then penalizes its row of logits.

        Args:
            counts: int32 `[counted texts, vocab]`, as in `DeviceCounts`.
            texts: int32 `[3, texts]`: row of logits, row of `counts`, and index in `sampled` of the token to add, or
                `NOT_PENDING`.
            penalties: fp32 `[3, texts]`: repetition, frequency, presence.
            sampled: int64 `[samples]`.
        """
        ...

    def mask(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        """Forbids in `rows`, int32 `[n]`, the tokens without a bit: int32 `[n, ceil(vocab / 32)]`."""
        ...

    def forbid(self, logits: Tensor, entries: Tensor, sampled: Tensor) -> None:
        """Forbids single tokens: int32 `[4, n]`: row, id, index in `sampled`, and required token there.

        If the index is not `NOT_PENDING`, the entry applies only if `sampled` has the required token there.
        """
        ...


class StepConstants(NamedTuple):
    """Device arrays that successive steps share while they have the same texts in the same rows."""

    indices: Tensor  # int64 [biases], in the flat logits, distinct
    biases: Tensor  # fp32 [biases]
    texts: Tensor  # int32 [3, penalized texts]
    penalties: Tensor  # fp32 [3, penalized texts]


class DeviceAdjuster:
    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self._changes = RowChanges()
        self._counts = DeviceCounts()
        self._constants: StepConstants | None = None
        self._constants_of: object = None  # rows and texts that `_constants` are made of

    def adjust(self, logits: Tensor, works: Sequence[Work], before: Sampled | None, masks: Masks | None) -> Tensor:
        logits = logits.float()
        assert logits.is_contiguous()
        vocab, device = logits.shape[1], logits.device
        changes = self._changes.of(works, vocab, before, masks)
        penalized = [change for change in changes if change.logit_changes.penalizes]
        updates = self._counts.plan(penalized, vocab, device)
        arrays: list[NDArray[Any]] = [
            updates.cleared,
            updates.indices,
            updates.amounts,
            updates.copies,
            updates.drafts,
            *_masks(changes),
            _entries(changes),
        ]
        source = [(change.row, change.logit_changes, change.pending) for change in changes], updates.rows.tolist()
        if source != self._constants_of:
            arrays += [*_biases(changes, vocab), _texts(penalized, updates.rows), _penalties(penalized)]
            self._constants = None
        cleared, indices, amounts, copies, drafts, rows, bits, entries, *constants = to_device_together(arrays, device)
        if self._constants is None:
            self._constants, self._constants_of = StepConstants(*constants), source
        sampled = before.tokens if before is not None and len(before.tokens) else logits.new_zeros(1, dtype=torch.int64)
        self._counts.apply(cleared, indices, amounts, copies, drafts)
        if len(self._constants.indices):
            logits.view(-1).index_add_(0, self._constants.indices, self._constants.biases)
        if penalized:
            texts, penalties = self._constants.texts, self._constants.penalties
            self._operators.penalize(logits, self._counts.table, texts, penalties, sampled)
        if len(rows):
            self._operators.mask(logits, rows, bits)
        if entries.shape[1]:
            self._operators.forbid(logits, entries, sampled)
        return logits


def _masks(changes: Sequence[RowChange]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    masked = [(change.row, change.bits) for change in changes if change.bits is not None]
    if not masked:
        return np.empty(0, np.int32), np.empty((0, 0), np.int32)
    rows, bits = zip(*masked, strict=True)
    return np.array(rows, np.int32), np.stack(bits)


def _biases(changes: Sequence[RowChange], vocab: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns distinct places in the flat logits, and the biases to add there."""
    biased = [change for change in changes if len(change.logit_changes.bias_ids)]
    if not biased:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    indices = [change.logit_changes.bias_ids.astype(np.int64) + change.row * vocab for change in biased]
    return np.concatenate(indices), np.concatenate([change.logit_changes.biases for change in biased])


def _texts(changes: Sequence[RowChange], rows: NDArray[np.int32]) -> NDArray[np.int32]:
    newest = [NOT_PENDING if change.pending is None else change.pending for change in changes]
    return np.stack((np.array([change.row for change in changes]), rows, np.array(newest))).astype(np.int32)


def _penalties(changes: Sequence[RowChange]) -> NDArray[np.float32]:
    kinds = [change.logit_changes.sampling for change in changes]
    penalties = [[each.repetition_penalty, each.frequency_penalty, each.presence_penalty] for each in kinds]
    return np.array(penalties, np.float32).reshape(-1, 3).T


def _entries(changes: Sequence[RowChange]) -> NDArray[np.int32]:
    entries = [(change.row, token, NOT_PENDING, 0) for change in changes for token in change.forbidden]
    unconditional = np.array(entries, np.int32).reshape(-1, 4).T if entries else NO_ENTRIES
    conditional = [change for change in changes if len(change.conditional)]
    if not conditional:
        return unconditional
    counts = [len(change.conditional) for change in conditional]
    tokens = np.concatenate([change.conditional for change in conditional])
    rows = np.repeat(np.array([change.row for change in conditional], np.int32), counts)
    indices = np.repeat(np.array([change.pending for change in conditional], np.int32), counts)
    return np.concatenate((unconditional, np.stack((rows, tokens[:, 0], indices, tokens[:, 1]))), 1)
