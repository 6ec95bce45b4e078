"""Keeps the hidden states of blocks' last tokens on the device, for sequences that find the block in the cache."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.device import to_device


class BlockEnd(NamedTuple):
    """Names the last token of a full block."""

    block: int
    position: int  # of the token in its text
    row: int  # of the states where its own is found


class BlockStates:
    """One state for each of the most recent blocks.

    A block's reuse for another text is not reported: a block that a step fills gets a new state; one that lands may
    keep an old state of the same position. Only draft tokens depend on it, never the output.
    """

    def __init__(self, most: int, hidden: int, device: torch.device, dtype: torch.dtype) -> None:
        self._states = torch.zeros((most, hidden), device=device, dtype=dtype)
        self._rows: OrderedDict[int, tuple[int, int]] = (
            OrderedDict()
        )  # by block: its row, the position of its last token

    def keep(self, ends: Sequence[BlockEnd], states: Tensor) -> None:
        """Keeps those rows of `states` `[rows, hidden]` that are block ends': of the last, if there are too many."""
        ends = ends[-len(self._states) :]
        if not ends:
            return
        targets = []
        for end in ends:
            row, _ = self._rows.pop(end.block, (len(self._rows), 0))
            if row == len(self._states):
                row, _ = self._rows.popitem(last=False)[1]
            self._rows[end.block] = row, end.position
            targets.append(row)
        sources = to_device(np.array([end.row for end in ends], np.int64), states.device)
        self._states[to_device(np.array(targets, np.int64), states.device)] = states[sources]

    def find(self, block: int, position: int) -> Tensor | None:
        """Returns the state `[hidden]` of a block's last token, which is at `position`; None: it is not known."""
        row, kept = self._rows.get(block, (0, -1))
        return self._states[row] if kept == position else None
