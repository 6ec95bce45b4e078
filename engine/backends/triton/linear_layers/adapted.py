"""Applies adapters to linear layers on a GPU: two launches a layer for all adapters of a step.

The kernels find the matrices in a table on the device, so that adapters can be loaded and removed without a new
recording.

Importing this module loads Triton.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.backends.triton.linear_layers.adapter_rows import StepRows
from engine.device import to_device
from engine.model.layers.adapted import MAX_FUSED_LAYERS, Adapting, LowRank
from engine.model.layers.linear import Linear
from kernels.lora import FEW_ROWS, MANY_ROWS, WORDS_PER_MATRIX, adapt, adapted_rows
from kernels.moe.sort_by_expert import NO_PAIR, Tiles


class TritonAdapted:
    """Is a linear layer that adapters can change."""

    def __init__(
        self,
        linear: Linear,
        inputs: int,
        sizes: Sequence[int],
        adapting: Adapting,
        rows: StepRows,
        device: torch.device,
    ) -> None:
        """`sizes` are the outputs of the layer's parts; `rows` is shared by the layers of `adapting`."""
        self._linear = linear
        self._inputs = inputs
        self._sizes = tuple(sizes)
        self._adapting = adapting
        self._rows = rows
        self._table = torch.zeros(
            (adapting.slots + 1, 1 + MAX_FUSED_LAYERS, WORDS_PER_MATRIX), dtype=torch.int64, device=device
        )
        self._changes: dict[int, LowRank] = {}  # by slot: keeps the matrices in memory

    def __call__(self, x: Tensor) -> Tensor:
        y = self._linear(x)
        step = self._adapting.step
        if step is not None:
            adapt(x, y, self._rows.of(step, x.shape[0]), self._table, self._sizes)
        return y

    @property
    def current(self) -> Linear:
        """Returns the operator for this step: the layer without adapters, if the step has none."""
        return self if self._adapting.step is not None else self._linear

    @property
    def variant(self) -> tuple[int, ...]:
        """Returns the sizes that the layer's kernels are compiled for."""
        return self._inputs, *self._sizes

    def put(self, slot: int, change: LowRank | None) -> None:
        words = np.zeros((1 + MAX_FUSED_LAYERS, WORDS_PER_MATRIX), np.int64)
        if change is None:
            self._changes.pop(slot, None)
        else:
            self._changes[slot] = change
            words[0, :3] = change.a.data_ptr(), 0, len(change.a)
            for number, part in enumerate(change.parts):
                rank, size = part.b.shape
                words[1 + number] = part.b.data_ptr(), part.rank_first, rank, part.first, size
        self._table[slot] = to_device(words, self._table.device)

    def held(self) -> list[Tensor]:
        return self._linear.held()

    def warm_up(self, dtype: torch.dtype) -> None:
        """Launches the kernels of each size of tiles once, for a row without an adapter."""
        device = self._table.device
        x = torch.zeros((1, self._inputs), dtype=dtype, device=device)
        y = torch.zeros((1, sum(self._sizes)), dtype=dtype, device=device)
        for rows in (FEW_ROWS, MANY_ROWS):
            pairs = torch.full((rows,), NO_PAIR, dtype=torch.int32, device=device)
            tiles = Tiles(pairs, torch.zeros(1, dtype=torch.int32, device=device), rows)
            adapt(x, y, adapted_rows(tiles, self._adapting.widest), self._table, self._sizes)
