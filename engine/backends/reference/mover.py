"""Moves KV blocks with PyTorch operators, on any device."""

import torch
from torch import Tensor

from engine.kv.mover import WordSpan, words_of

GOLDEN, FIRST_FACTOR, SECOND_FACTOR = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""SplitMix64's numbers, as in `kernels.block_digest`."""


class ReferenceMover:
    """See `engine.kv.mover.BlockMover`. Every move goes by way of a copy that is not in the pool."""

    def gather(self, pool: Tensor, blocks: Tensor) -> Tensor:
        return words_of(pool).index_select(1, blocks).transpose(0, 1).contiguous()

    def scatter(self, words: Tensor, pool: Tensor, blocks: Tensor) -> None:
        words_of(pool).index_copy_(1, blocks, words.transpose(0, 1))

    def copy(self, pool: Tensor, sources: Tensor, targets: Tensor) -> None:
        words = words_of(pool)
        words.index_copy_(1, targets, words.index_select(1, sources))

    def digest(self, source: Tensor, sources: Tensor, span: WordSpan) -> Tensor:
        found = source[:, span.source_first : span.source_first + span.length].index_select(0, sources)
        blocks = torch.arange(len(sources), device=source.device)[:, None]
        place = span.first + blocks * span.stride + torch.arange(span.length, device=source.device)
        word = found ^ (place * GOLDEN)
        word = (word ^ _shifted(word, 30)) * FIRST_FACTOR
        word = (word ^ _shifted(word, 27)) * SECOND_FACTOR
        return (word ^ _shifted(word, 31)).sum()

    def copy_and_digest(
        self, source: Tensor, sources: Tensor, target: Tensor, targets: Tensor, span: WordSpan
    ) -> Tensor:
        found = source[:, span.source_first : span.source_first + span.length].index_select(0, sources)
        target[:, span.target_first : span.target_first + span.length].index_copy_(0, targets, found)
        return self.digest(source, sources, span)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """Shifts to the right as if the number had no sign."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)
