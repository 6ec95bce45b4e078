"""Counts on the device how often each token occurs in the texts of sequences with penalties.

A sequence has a row of the table while it is in steps. A row is filled from the text when a sequence is new, or has
returned after another sequence took its row, or the table had to grow; afterwards each step adds the text's newest
token, which only the device may know. In a step with draft tokens each draft token has a row too: a copy of its
sequence's row, plus the draft tokens on its path.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.backends.adjusting.row_changes import RowChange

FEWEST_ROWS = 8
IN_PROMPT, IN_OUTPUT = 1, 2
"""Added to a token's count: once for any number of occurrences in the prompt, and for each in the output."""


class Row(NamedTuple):
    """Contents of a row of the table."""

    number: int
    text: Sequence[int]  # the sequence's own array; another array is another text
    counted: int  # leading tokens that are counted; a pending token may be the last of them


class Updates(NamedTuple):
    """Changes to the table before the newest tokens are added, which the host does not know."""

    rows: NDArray[np.int32]  # by text, in order
    cleared: NDArray[np.int64]  # rows to clear first
    indices: NDArray[np.int64]  # in the flat table, distinct
    amounts: NDArray[np.int32]  # added at `indices`
    copies: NDArray[np.int64]  # [2, rows of draft tokens]: source and target rows of copies
    drafts: NDArray[np.int64]  # indices in the flat table at which draft tokens are added, possibly repeated


class DeviceCounts:
    """Table: int32 `[rows, vocab]`, twice the count in the output, plus 1 if a token is in the prompt."""

    def __init__(self) -> None:
        self.table = torch.empty((0, 0), dtype=torch.int32)
        self._rows: dict[int, Row] = {}  # by sequence, in the order of their last steps

    def plan(self, changes: Sequence[RowChange], vocab: int, device: torch.device) -> Updates:
        """Assigns each text a row, and computes the row's changes. Grows the table, at most to twice the texts."""
        if len(changes) > len(self.table):
            self._rows.clear()
            self.table = torch.empty((0, 0), dtype=torch.int32)  # freed before the larger one is made
            count = max(FEWEST_ROWS, 1 << (len(changes) - 1).bit_length())
            self.table = torch.zeros((count, vocab), dtype=torch.int32, device=device)
        own_rows = [None if each.work.proposed else self._rows.pop(each.work.sequence, None) for each in changes]
        free = self._free_rows(own_rows)
        rows, cleared, indices, amounts = [], [], [], []
        copies: list[tuple[int, int]] = []
        drafts: list[int] = []
        for change, row in zip(changes, own_rows, strict=True):
            work = change.work
            assert work.tokens is not None
            if work.proposed:  # a row of draft tokens: it follows its work's first row
                rows.append(free.pop())
                copies.append((self._rows[work.sequence].number, rows[-1]))
                drafts += [token + rows[-1] * vocab for token in work.proposed]
                continue
            known = len(work.tokens)
            if row is None:
                row = Row(free.pop(), work.tokens, 0)
            if row.text is not work.tokens or not 0 < row.counted <= known:
                cleared.append(row.number)
                counts = _counts_of(change)
            else:
                counts = dict.fromkeys(work.tokens[row.counted :], 0)
                for token in work.tokens[row.counted :]:
                    counts[token] += IN_OUTPUT
            if counts:
                indices.append(np.fromiter(counts, np.int64) + row.number * vocab)
                amounts.append(np.fromiter(counts.values(), np.int32))
            rows.append(row.number)
            self._rows[work.sequence] = Row(row.number, work.tokens, known + (change.pending is not None))
        return Updates(
            np.array(rows, np.int32),
            np.array(cleared, np.int64),
            np.concatenate(indices) if indices else np.empty(0, np.int64),
            np.concatenate(amounts) if amounts else np.empty(0, np.int32),
            np.array(copies, np.int64).reshape(-1, 2).T.copy(),
            np.array(drafts, np.int64),
        )

    def apply(self, cleared: Tensor, indices: Tensor, amounts: Tensor, copies: Tensor, drafts: Tensor) -> None:
        """Applies the updates, given as arrays on the device."""
        if len(cleared):
            self.table.index_fill_(0, cleared, 0)
        if len(indices):
            self.table.view(-1).index_add_(0, indices, amounts)
        if len(drafts):
            self.table[copies[1]] = self.table[copies[0]]
            self.table.view(-1).index_add_(0, drafts, torch.full_like(drafts, IN_OUTPUT, dtype=torch.int32))

    def _free_rows(self, own_rows: Sequence[Row | None]) -> list[int]:
        """Returns rows for the texts without a row: free rows, then rows of the sequences absent longest."""
        missing = sum(row is None for row in own_rows)
        if not missing:
            return []
        used = {row.number for row in own_rows if row is not None}
        free = sorted({*range(len(self.table))} - used - {row.number for row in self._rows.values()})
        while len(free) < missing:
            free.append(self._rows.pop(next(iter(self._rows))).number)
        return free[:missing]


def _counts_of(change: RowChange) -> dict[int, int]:
    work = change.work
    assert work.tokens is not None
    counts = dict.fromkeys(work.tokens[: work.prompt_tokens], IN_PROMPT) if change.logit_changes.counts_prompt else {}
    for token, count in Counter(work.tokens[work.prompt_tokens :]).items():
        counts[token] = counts.get(token, 0) + IN_OUTPUT * count
    return counts
