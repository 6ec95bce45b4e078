"""How a backend moves blocks out of a pool, into it, and from place to place in it."""

from typing import Protocol

import torch
from torch import Tensor

WORD_DTYPE = torch.int64
"""Blocks are moved as words: their bytes are a multiple of eight, and an index per byte would cost eight times more."""


class BlockMover(Protocol):
    """Moves blocks of a group, `[layers, blocks, vectors, block, width]`.

    Block numbers are int64 on the pool's device.
    """

    def gather(self, pool: Tensor, blocks: Tensor) -> Tensor:
        """Returns `[blocks, layers, words]`, each block of all layers in one piece."""
        ...

    def scatter(self, words: Tensor, pool: Tensor, blocks: Tensor) -> None:
        """Writes what `gather` gave into `blocks`."""
        ...

    def copy(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copies blocks onto others, in order or all at once: no move reads an earlier one's target."""
        ...


def words_of(pool: Tensor) -> Tensor:
    """Returns `[layers, blocks, words]`, a view of the pool."""
    return pool.flatten(2).view(WORD_DTYPE)
