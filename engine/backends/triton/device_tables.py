"""Block tables on the device, at a place that stays, changed where they differ from the step before."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import to_device


class DeviceTables:
    """`tensor` `[rows, width]` int32. Behind a row's own blocks is what was there before; nobody looks there."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.tensor: Tensor = torch.zeros((rows, width), dtype=torch.int32, device=device)
        self._width = width
        self._rows: list[list[int]] = [[] for _ in range(rows)]  # what the tensor holds

    def update(self, rows: Sequence[int], tables: Sequence[list[int]]) -> None:
        """Row `rows[i]` becomes table i. Most tables are those of the step before, or have grown."""
        places: list[NDArray[np.int64]] = []
        blocks: list[NDArray[np.int64]] = []
        for row, own in zip(rows, tables, strict=True):
            known = self._rows[row]
            if own == known:
                continue
            assert len(own) <= self._width, "a block table longer than the longest text's"
            first = len(known) if own[: len(known)] == known else 0
            places.append(np.arange(row * self._width + first, row * self._width + len(own)))
            blocks.append(np.array(own[first:], np.int64))
            self._rows[row] = own.copy()  # a sequence's own list grows
        if places:
            index, values = to_device(np.stack((np.concatenate(places), np.concatenate(blocks))), self.tensor.device)
            self.tensor.view(-1).index_copy_(0, index, values.int())
