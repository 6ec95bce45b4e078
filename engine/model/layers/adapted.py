"""LoRA adapters of linear layers: y += B A x for the rows of a step with an adapter (arXiv:2106.09685).

Each loaded adapter has a slot, from 1 on. An adaptable linear layer stores the matrices of each slot; rows with
different adapters, and rows without, run in the same step. In a step without adapters nothing is called.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
MAX_FUSED_LAYERS = 3
"""Queries, keys and values are one product."""


@dataclass(frozen=True)
class AdapterTarget:
    """A linear layer that adapters may change, by the names that its parts have in a checkpoint.

    A fused layer has several names; its outputs lie side by side in their order. Of a model that is cut among ranks,
    it is this rank's part of the layer.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # outputs of each
    inputs: int
    scale: float  # applied to all outputs
    shapes: tuple[tuple[int, int], ...]  # [outputs, inputs] of each in the checkpoint
    outputs: tuple[Tensor | slice, ...]  # of each: the checkpoint's outputs that it has, in its order
    columns: slice  # the checkpoint's inputs that it has


@dataclass(frozen=True)
class Expansion:
    """B of one part, for the outputs from `first` on."""

    first: int
    rank_first: int  # first of its values in x a^T
    b: Tensor  # [rank, outputs], contiguous: transposed and scaled


@dataclass(frozen=True)
class LowRank:
    """One adapter's matrices for one linear layer: x a^T, then for each part its columns of that times b."""

    a: Tensor  # [ranks of all parts, inputs]
    parts: tuple[Expansion, ...]


class Adaptable(Protocol):
    def put(self, slot: int, change: LowRank | None) -> None:
        """Stores the adapter of a slot, or removes it. On any thread, while no row of a step uses the slot."""
        ...


@dataclass(frozen=True)
class AdapterRows:
    """Rows of a matrix by adapter: group g has the rows order[starts[g]:starts[g + 1]]."""

    order: Ints  # [rows with an adapter]
    starts: Ints  # [groups + 1]
    slots: Ints  # [groups]

    @classmethod
    def of(cls, slots: Ints) -> "AdapterRows":
        """Groups rows by `slots` `[rows]`, where 0 is no adapter; the order within a group stays."""
        order = np.argsort(slots, kind="stable")
        order = order[np.searchsorted(slots[order], 1) :]
        found, starts = np.unique(slots[order], return_index=True)
        return cls(order, np.append(starts, len(order)), found)


@dataclass(frozen=True)
class StepAdapters:
    """The adapters of a step's rows."""

    every: AdapterRows  # of all tokens
    kept: AdapterRows  # of the rows that the last layer passes on
    tokens: int
    rows: int  # that the last layer passes on
    on_device: tuple[Tensor, ...] | None = None  # int64 slots of `kept` and `every` where the host does not know them

    @classmethod
    def of(cls, slots: Ints, kept: Ints) -> "StepAdapters | None":
        """`slots` are of all tokens, `kept` are the tokens that the last layer passes on. None without adapters."""
        if not slots.any():
            return None
        return cls(AdapterRows.of(slots), AdapterRows.of(slots[kept]), len(slots), len(kept))

    def of_rows(self, count: int) -> AdapterRows:
        """Returns the groups for a matrix of `count` rows: all tokens, or the rows that are passed on."""
        assert count in (self.tokens, self.rows), (
            "neither all rows of a step nor the rows that the last layer passes on"
        )
        return self.every if count == self.tokens else self.kept


class Adapting:
    """The adapters of the current step, shared by a model's linear layers. Used by one thread."""

    def __init__(self, slots: int, max_rank: int) -> None:
        self.slots = slots
        self.widest = MAX_FUSED_LAYERS * (max_rank + 1)  # maximum rank over all parts, each rounded up to even
        self.step: StepAdapters | None = None

    def begin(self, step: StepAdapters | None) -> None:
        self.step = step


def adapter_bytes(target: AdapterTarget, rank: int, dtype: torch.dtype) -> int:
    return rank * (len(target.names) * target.inputs + sum(target.sizes)) * dtype.itemsize
