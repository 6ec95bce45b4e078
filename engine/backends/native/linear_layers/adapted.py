"""Applies LoRA adapters to linear layers by the native operator: one call per layer for all adapters of a step."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.backends.native.library import (
    AdaptedRowsArguments,
    AdaptersArguments,
    LoraArguments,
    LoraExpansionArguments,
)
from engine.backends.native.linear_layers.linear import NativeLinear
from engine.backends.native.linear_layers.parts import CPU_DEVICE
from engine.model.layers.adapted import AdapterRows, Adapting, Ints, LowRank, StepAdapters
from engine.model.quantized import Weight
from engine.parallel.sums import WHOLE_SUM, SumOrder

COLUMN_MULTIPLE = 16
"""Columns of a packed matrix are padded to a multiple of this, a whole number of vectors."""


class NativeAdapted(NativeLinear):
    """Multiplies as a `NativeLinear` does; adapters can change it (`engine.model.layers.adapted.Adaptable`)."""

    def __init__(
        self,
        native: ctypes.CDLL,
        weights: Weight | Sequence[Weight],
        bias: Tensor | None,
        dtype: torch.dtype,
        adapting: Adapting,
        order: SumOrder = WHOLE_SUM,
    ) -> None:
        super().__init__(native, weights, bias, dtype, order)
        self.adapting = adapting
        self._table = (POINTER(LoraArguments) * (adapting.slots + 1))()
        self._alive: dict[int, list[object]] = {}  # by slot, the memory that the table points to
        self.arguments.changes = ctypes.addressof(self._table)
        self._add = native.baton_adapt

    def __call__(self, x: Tensor) -> Tensor:
        y = super().__call__(x)
        step = self.adapting.step
        if step is not None:
            buffers = AdapterBuffers(self.adapting, self._dtype)
            adapters = buffers.arguments(step)
            rows = adapters.every if len(x) == step.tokens else adapters.kept
            self._add(self.arguments, adapters, rows, x.data_ptr(), x.stride(0), y.data_ptr())
        return y

    def put(self, slot: int, change: LowRank | None) -> None:
        """Packs an adapter's matrices, as lora.h says."""
        if change is None:
            self._table[slot] = POINTER(LoraArguments)()
            self._alive.pop(slot, None)
            return
        wide = self._dtype == torch.bfloat16
        firsts, blocks, rank_first = [], [], 0
        for part in change.parts:  # in bf16 each part's rank is made even
            rank = len(part.b)
            blocks.append(
                functional.pad(change.a[part.rank_first : part.rank_first + rank], (0, 0, 0, wide and rank % 2))
            )
            firsts.append(rank_first)
            rank_first += len(blocks[-1])
        a = packed(torch.cat(blocks).t())
        bs = [packed(functional.pad(part.b, (0, 0, 0, wide and len(part.b) % 2))) for part in change.parts]
        expansions = (LoraExpansionArguments * len(bs))(
            *(
                LoraExpansionArguments(part.first, part.b.shape[1], first, len(block), columns_of(b), b.data_ptr())
                for part, first, block, b in zip(change.parts, firsts, blocks, bs, strict=True)
            )
        )
        arguments = LoraArguments(columns_of(a), a.data_ptr(), len(bs), expansions)
        self._alive[slot] = [a, *bs, expansions, arguments]
        self._table[slot] = ctypes.pointer(arguments)


class AdapterBuffers:
    """Operator arguments of a step's adapters, with a buffer that is kept from step to step."""

    def __init__(self, adapting: Adapting, dtype: torch.dtype) -> None:
        self._columns = -(-adapting.widest // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
        self._shrunk = torch.empty((0, self._columns), dtype=dtype)
        self._alive: list[Ints] = []

    def arguments(self, step: StepAdapters) -> AdaptersArguments:
        """Returns the arguments, valid until the next call."""
        rows = len(step.every.order)
        if rows > len(self._shrunk):
            self._shrunk = torch.empty((1 << (rows - 1).bit_length(), self._columns), dtype=self._shrunk.dtype)
        self._alive.clear()
        every, kept = self._rows(step.every), self._rows(step.kept)
        return AdaptersArguments(every, kept, self._columns, self._shrunk.data_ptr())

    def _rows(self, rows: AdapterRows) -> AdaptedRowsArguments:
        arrays = [np.ascontiguousarray(each, np.int64) for each in (rows.slots, rows.starts, rows.order)]
        self._alive += arrays
        return AdaptedRowsArguments(len(rows.slots), *(each.ctypes.data for each in arrays))


def packed(matrix: Tensor) -> Tensor:
    """Packs `[depth, columns]` for lora.c: fp32 as it is, bf16 in pairs of the depth; columns to whole vectors."""
    depth, columns = matrix.shape
    pairs = 2 if matrix.dtype == torch.bfloat16 else 1
    padded = torch.zeros(
        (-(-depth // pairs) * pairs, -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE),
        dtype=matrix.dtype,
        device=CPU_DEVICE,
    )
    padded[:depth, :columns] = matrix
    return padded.view(len(padded) // pairs, pairs, -1).transpose(1, 2).contiguous()


def columns_of(matrix: Tensor) -> int:
    return matrix.shape[1]
