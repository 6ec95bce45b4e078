"""The interface by which a backend moves blocks out of a pool, into it, and within it."""

from typing import Protocol

import torch
from torch import Tensor

WORD_DTYPE = torch.int64
"""Unit of block moves. Block sizes are multiples of 8 bytes, and an index per byte would cost eight times more."""


class BlockMover(Protocol):
    """Moves blocks of a group, `[layers, blocks, vectors, block, width]`.

    Block numbers are int64 on the pool's device.
    """

    def gather(self, pool: Tensor, blocks: Tensor) -> Tensor:
        """Returns `[blocks, layers, words]`: each block of all layers is contiguous."""
        ...

    def scatter(self, words: Tensor, pool: Tensor, blocks: Tensor) -> None:
        """Writes `words`, a result of `gather`, into `blocks`."""
        ...

    def copy(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copies blocks in any order: no move reads a target of another."""
        ...


def words_of(pool: Tensor) -> Tensor:
    """Returns `[layers, blocks, words]`, a view of the pool."""
    return pool.flatten(2).view(WORD_DTYPE)
