"""Moves KV blocks by Triton kernels: each word is read and written once, layers in the order of the staging."""

from torch import Tensor

from engine.kv.mover import WORD_DTYPE, WordSpan
from kernels import block_copy, block_digest


class TritonMover:
    def gather(self, pool: Tensor, blocks: Tensor) -> Tensor:
        return block_copy.gather(pool, blocks).flatten(2).view(WORD_DTYPE)

    def scatter(self, words: Tensor, pool: Tensor, blocks: Tensor) -> None:
        staging = words.contiguous().view(pool.dtype).view(len(blocks), len(pool), *pool.shape[2:])
        block_copy.scatter(staging, pool, blocks)

    def copy(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        block_copy.copy(pool, sources, targets)

    def digest(self, source: Tensor, sources: Tensor, span: WordSpan) -> Tensor:
        return block_digest.digest(source, sources, span)

    def copy_and_digest(
        self, source: Tensor, sources: Tensor, target: Tensor, targets: Tensor, span: WordSpan
    ) -> Tensor:
        return block_digest.copy_and_digest(source, sources, target, targets, span)
