"""Applies adapters to linear layers on a GPU.

In recorded steps two kernels apply all adapters at once; they find the matrices in a table on the device, so that
adapters can be loaded and removed without a new recording. In other steps, which have chunks of prompts, each adapter's
rows are multiplied by cuBLAS.

Importing this module loads Triton.
"""

import numpy as np
import torch
from torch import Tensor

from engine.backends.reference.linear import AdaptedLinear
from engine.device import to_device
from engine.model.adapted import MAX_FUSED_LAYERS, AdapterRows, Adapting, LowRank, StepAdapters
from engine.model.linear import Linear
from kernels.lora import WORDS_PER_MATRIX, adapt

NO_ROWS = AdapterRows(np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))


class TritonAdapted(AdaptedLinear):
    """Is a linear layer that adapters can change."""

    def __init__(self, linear: Linear, adapting: Adapting, device: torch.device) -> None:
        super().__init__(linear, adapting)
        self._table = torch.zeros(
            (adapting.slots + 1, 1 + MAX_FUSED_LAYERS, WORDS_PER_MATRIX), dtype=torch.int64, device=device
        )

    def __call__(self, x: Tensor) -> Tensor:
        step = self._adapting.step
        if step is None or step.on_device is None:
            return super().__call__(x)
        y = self._linear(x)
        adapt(x, y, step.on_device, self._table, self._adapting.widest)
        return y

    @property
    def current(self) -> Linear:
        """Returns the operator for this step: the layer without adapters, if the step has none."""
        return self if self._adapting.step is not None else self._linear

    def put(self, slot: int, change: LowRank | None) -> None:
        super().put(slot, change)
        words = np.zeros((1 + MAX_FUSED_LAYERS, WORDS_PER_MATRIX), np.int64)
        if change is not None:
            words[0, :3] = change.a.data_ptr(), 0, len(change.a)
            for number, part in enumerate(change.parts):
                rank, size = part.b.shape
                words[1 + number] = part.b.data_ptr(), part.rank_first, rank, part.first, size
        self._table[slot] = to_device(words, self._table.device)


def recorded(slots: Tensor) -> StepAdapters:
    """Returns the adapters of a step that is recorded, whose `slots` `[rows]` are known on the device only."""
    return StepAdapters(NO_ROWS, NO_ROWS, len(slots), len(slots), slots)
