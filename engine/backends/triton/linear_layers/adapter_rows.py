"""Sorts the rows of a step by adapter, once for all layers, as the adapters' kernels take them.

The host knows the rows of a step that is launched piece by piece, and sends them sorted. The rows of a recorded step
are known on the device only, which sorts them.

Importing this module loads Triton.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import to_device_together
from engine.model.layers.adapted import AdapterRows, Adapting, StepAdapters
from kernels.lora import AdaptedRows, adapted_rows, sorted_rows, tile_rows
from kernels.moe.sort_by_expert import NO_PAIR, Tiles

Ints32 = NDArray[np.int32]
NO_ROWS = AdapterRows(np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))


class StepRows:
    """The sorted rows of the current step, shared by the layers of a model."""

    def __init__(self, adapting: Adapting, device: torch.device) -> None:
        self._adapting = adapting
        self._device = device
        self._step: StepAdapters | None = None
        self._sorted: dict[int, AdaptedRows] = {}  # by the rows of the matrix

    def of(self, step: StepAdapters, count: int) -> AdaptedRows:
        """Returns the tiles of a matrix of `count` rows: all tokens, or the rows that the last layer passes on."""
        if step is not self._step:
            self._step, self._sorted = step, self._sort(step)
        return self._sorted[count]

    def _sort(self, step: StepAdapters) -> dict[int, AdaptedRows]:
        widest = self._adapting.widest
        if step.on_device is not None:
            return {len(slots): sorted_rows(slots, self._adapting.slots, widest) for slots in step.on_device}
        sizes = [tile_rows(len(rows.order), len(rows.slots)) for rows in (step.kept, step.every)]
        parts = [tiled(rows, size) for rows, size in zip((step.kept, step.every), sizes, strict=True)]
        pairs, owners, every_pairs, every_owners = to_device_together([*parts[0], *parts[1]], self._device)
        kept = adapted_rows(Tiles(pairs, owners, sizes[0]), widest)
        every = adapted_rows(Tiles(every_pairs, every_owners, sizes[1]), widest)
        return {step.rows: kept, step.tokens: every}  # of as many rows, the first is the same


def tiled(rows: AdapterRows, size: int) -> tuple[Ints32, Ints32]:
    """Returns the rows of tiles of `size` rows, int32 `[tiles x size]`, and each tile's slot, int32 `[tiles]`."""
    counts = np.diff(rows.starts)
    tiles = -(-counts // size)
    first_rows = (tiles.cumsum() - tiles) * size
    pairs = np.full(int(tiles.sum()) * size, NO_PAIR, np.int32)
    pairs[np.arange(len(rows.order)) + np.repeat(first_rows - rows.starts[:-1], counts)] = rows.order
    return pairs, np.repeat(rows.slots, tiles).astype(np.int32)


def recorded(slots: Tensor, kept: Tensor | None = None) -> StepAdapters:
    """Returns the adapters of a step that is recorded, whose `slots` `[rows]` are known on the device only.

    `kept` are those of the rows that the last layer passes on; None: it passes on all.
    """
    on_device = (slots,) if kept is None else (kept, slots)
    return StepAdapters(NO_ROWS, NO_ROWS, len(slots), len(on_device[0]), on_device)
