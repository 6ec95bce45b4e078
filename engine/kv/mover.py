"""The interface by which a backend moves blocks out of a pool, into it, and within it."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

WORD_DTYPE = torch.int64
"""Unit of block moves. Block sizes are multiples of 8 bytes, and an index per byte would cost eight times more."""


class WordSpan(NamedTuple):
    """The part of each block of one layer that is copied to another pool, or digested, in words."""

    source_first: int  # in a block of the pool that is read
    target_first: int  # in a block of the pool that is written
    length: int
    first: int  # place of the first block's first word in the digest, at least 2^32
    stride: int  # places from a block to the next


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

    def digest(self, source: Tensor, sources: Tensor, span: WordSpan) -> Tensor:
        """Returns the digest, int64 `[]`, of parts of blocks of `[blocks, words]`, as `kernels.block_digest` has it."""
        ...

    def copy_and_digest(
        self, source: Tensor, sources: Tensor, target: Tensor, targets: Tensor, span: WordSpan
    ) -> Tensor:
        """Does the same, and copies these parts into the blocks `targets` of another pool's `[blocks, words]`."""
        ...


def words_of(pool: Tensor) -> Tensor:
    """Returns `[layers, blocks, words]`, a view of the pool."""
    return pool.flatten(2).view(WORD_DTYPE)
