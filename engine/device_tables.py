"""Block tables on the device, at a place that stays, changed where they differ from the step before."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.device import to_device


class DeviceTables:
    """`tensor` `[rows, width]` int32. Behind a row's own blocks is what was there before; nobody looks there."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.tensor: Tensor = torch.zeros((rows, width), dtype=torch.int32, device=device)
        self._width = width
        self._rows: list[list[int]] = [[] for _ in range(rows)]  # what the tensor holds

    def update(self, tables: Sequence[list[int]]) -> None:
        """Row i becomes table i. Most tables are those of the step before, or have grown."""
        places: list[int] = []
        blocks: list[int] = []
        for row, own in enumerate(tables):
            known = self._rows[row]
            if own == known:
                continue
            assert len(own) <= self._width, "a block table longer than the longest text's"
            first = len(known) if own[: len(known)] == known else 0
            places += range(row * self._width + first, row * self._width + len(own))
            blocks += own[first:]
            self._rows[row] = own.copy()  # a sequence's own list grows
        if places:
            index, values = to_device(np.array([places, blocks]), self.tensor.device)
            self.tensor.view(-1).index_copy_(0, index, values.int())
