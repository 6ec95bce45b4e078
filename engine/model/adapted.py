"""Says what adapters add to linear layers: y += B A x for the rows of a step that have one (LoRA, arXiv:2106.09685).

Each adapter that is loaded has a slot, from 1 on. A linear layer that can be changed keeps what each slot adds to it;
rows of several adapters, and rows without, run in the same step. In a step without adapters nothing is called.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
MAX_FUSED_LAYERS = 3
"""Layers that are fused into one, at most: queries, keys and values."""


@dataclass(frozen=True)
class AdapterTarget:
    """Says where one linear layer's outputs come from in a checkpoint: adapters name its parts as the checkpoint does.

    A layer that is fused here has several names; its outputs lie side by side in their order.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # outputs of each
    inputs: int
    scale: float  # of all outputs
    order: Tensor | None  # int64 [outputs]: which of the checkpoint's outputs each is; None: it is the same


@dataclass(frozen=True)
class Expansion:
    """Holds a part's B, for the outputs from `first` on."""

    first: int
    rank_first: int  # of the shrunk numbers the first that it takes
    b: Tensor  # [rank, outputs], contiguous: transposed, and scaled


@dataclass(frozen=True)
class LowRank:
    """Holds what one adapter adds to one linear layer: x a^T, then each part's share of that times its b."""

    a: Tensor  # [ranks of all parts, inputs]
    parts: tuple[Expansion, ...]


class Adaptable(Protocol):
    """Is a linear layer that adapters can change."""

    def put(self, slot: int, change: LowRank | None) -> None:
        """Keeps what the adapter in a slot adds; None: nothing. On any thread, while no row of a step has the slot."""
        ...


@dataclass(frozen=True)
class AdapterRows:
    """Groups those rows of a matrix that have an adapter: rows of group g are order[starts[g]:starts[g + 1]]."""

    order: Ints  # [rows with an adapter]
    starts: Ints  # [groups + 1]
    slots: Ints  # [groups]

    @classmethod
    def of(cls, slots: Ints) -> "AdapterRows":
        """Groups rows by `slots` `[rows]`, of which 0 is no adapter; rows of a group are in their order."""
        order = np.argsort(slots, kind="stable")
        order = order[np.searchsorted(slots[order], 1) :]
        found, starts = np.unique(slots[order], return_index=True)
        return cls(order, np.append(starts, len(order)), found)


@dataclass(frozen=True)
class StepAdapters:
    """Holds the adapters of a step's rows."""

    every: AdapterRows  # of all tokens
    kept: AdapterRows  # of those that go on from the last layer
    tokens: int
    rows: int  # that go on
    on_device: Tensor | None = None  # int64 [tokens] slots of a step that is recorded: no rows are known then

    @classmethod
    def of(cls, slots: Ints, kept: Ints) -> "StepAdapters | None":
        """Makes them of the slot of each token, and the tokens that go on; None where no token has an adapter."""
        if not slots.any():
            return None
        return cls(AdapterRows.of(slots), AdapterRows.of(slots[kept]), len(slots), len(kept))

    def of_rows(self, count: int) -> AdapterRows:
        """Returns the rows of a matrix of so many: all tokens, or those that go on."""
        assert count in (self.tokens, self.rows), "neither all rows of a step nor those that go on"
        return self.every if count == self.tokens else self.kept


class Adapting:
    """Tells the linear layers of one model which rows of the current step have which adapter. Used by one thread."""

    def __init__(self, slots: int, max_rank: int) -> None:
        """There are slots 1 … `slots`, for adapters of up to `max_rank`."""
        self.slots = slots
        self.widest = MAX_FUSED_LAYERS * (
            max_rank + 1
        )  # numbers that a row is shrunk to at most, each part's made even
        self.step: StepAdapters | None = None

    def begin(self, step: StepAdapters | None) -> None:
        """Notes the adapters of the step that begins; None: no row has one."""
        self.step = step


def adapter_bytes(place: AdapterTarget, rank: int, dtype: torch.dtype) -> int:
    """Returns the bytes of an adapter of this rank in one place."""
    return rank * (len(place.names) * place.inputs + sum(place.sizes)) * dtype.itemsize
