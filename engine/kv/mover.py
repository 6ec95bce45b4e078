"""How blocks get out of a pool, into it, and from place to place in it: what a backend offers, and PyTorch's way."""

from typing import Protocol

import torch
from torch import Tensor

WORD = torch.int64
"""Blocks are moved as words: their bytes are a multiple of eight, and an index per byte would cost eight times more."""


class BlockMover(Protocol):
    """For pools `[layers, blocks, kv_heads, 2, block, head_dim]`; block numbers are int64 on the pool's device."""

    def gather(self, pool: Tensor, blocks: Tensor) -> Tensor:
        """`[blocks, layers, words]`, each block of all layers in one piece."""
        ...

    def scatter(self, words: Tensor, pool: Tensor, blocks: Tensor) -> None:
        """Writes what `gather` gave into `blocks`."""
        ...

    def copy(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        """All sources as they were before any target is written, or in order: no move reads an earlier one's target."""
        ...


class TorchMover:
    """Every move by way of a copy that is not in the pool."""

    def gather(self, pool: Tensor, blocks: Tensor) -> Tensor:
        return words_of(pool).index_select(1, blocks).transpose(0, 1).contiguous()

    def scatter(self, words: Tensor, pool: Tensor, blocks: Tensor) -> None:
        words_of(pool).index_copy_(1, blocks, words.transpose(0, 1))

    def copy(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        words = words_of(pool)
        words.index_copy_(1, targets, words.index_select(1, sources))


def words_of(pool: Tensor) -> Tensor:
    """`[layers, blocks, words]`, a view."""
    return pool.flatten(2).view(WORD)
