"""Moves KV blocks with PyTorch operators, on any device."""

from torch import Tensor

from engine.kv.mover import words_of


class ReferenceMover:
    """See `engine.kv.mover.BlockMover`. Every move goes by way of a copy that is not in the pool."""

    def gather(self, pool: Tensor, blocks: Tensor) -> Tensor:
        return words_of(pool).index_select(1, blocks).transpose(0, 1).contiguous()

    def scatter(self, words: Tensor, pool: Tensor, blocks: Tensor) -> None:
        words_of(pool).index_copy_(1, blocks, words.transpose(0, 1))

    def copy(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        words = words_of(pool)
        words.index_copy_(1, targets, words.index_select(1, sources))
