"""Keeps the hidden states of blocks' last tokens on the device, for sequences that find a block in the cache."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.device import to_device


class BlockEnd(NamedTuple):
    """The last token of a full block."""

    block: int
    position: int  # of the token in its text
    row: int  # of the hidden states


class BlockStates:
    """One hidden state for each of the most recent blocks.

    Reuse of a block for another text is not reported. A block filled by a step gets a new state; a block filled by a
    handoff may keep an old state of the same position. Only draft tokens depend on the state, never the output.
    """

    def __init__(self, max_blocks: int, hidden: int, device: torch.device, dtype: torch.dtype) -> None:
        self._states = torch.zeros((max_blocks, hidden), device=device, dtype=dtype)
        self._rows: OrderedDict[int, tuple[int, int]] = (
            OrderedDict()
        )  # by block: its row, and the position of its last token

    def keep(self, ends: Sequence[BlockEnd], states: Tensor) -> None:
        """Stores the rows of `states` `[rows, hidden]` at `ends`; of too many, the last."""
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
        """Returns the state `[hidden]` of a block's last token at `position`; None: unknown."""
        row, kept = self._rows.get(block, (0, -1))
        return self._states[row] if kept == position else None
