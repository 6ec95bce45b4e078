"""Moves tokens' KV within a pool, in all layers of a group: accepted tree KV into text order.

PyTorch operators do it on every device, with one gather and one scatter for all layers, so that recorded steps may
include it. Everything is read before anything is written.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from contracts.kv.spec import POOL_SCALE_BYTES, KVGroup


class TokenSlots(NamedTuple):
    """Places of tokens' KV in one group."""

    slots: list[int]  # block x block size + offset
    blocks: list[int]

    @staticmethod
    def of(positions: Sequence[tuple[list[int], int]], block_tokens: int) -> "TokenSlots":
        blocks = [table[position // block_tokens] for table, position in positions]
        offsets = [position % block_tokens for _, position in positions]
        return TokenSlots(
            [block * block_tokens + offset for block, offset in zip(blocks, offsets, strict=True)], blocks
        )


def move_tokens(pool: Tensor, group: KVGroup, sources: Tensor, targets: Tensor) -> None:
    """Copies the KV of the slots `sources` to `targets`, both int64 `[tokens]`: block x block size + offset.

    `pool` is the group's `[layers, blocks, vectors, block, width]`, or `[layers, blocks, vectors, bytes]`.
    """
    block = group.block_tokens
    source, target = (sources // block, sources % block), (targets // block, targets % block)
    if pool.dim() == 5:
        pool[:, target[0], :, target[1]] = pool[:, source[0], :, source[1]]
        return
    memory, end = pool.view(torch.uint8), block * sum(group.parts)
    assert memory.shape[-1] == end + len(group.parts) * block * POOL_SCALE_BYTES, "a pool of another layout"
    values = memory[..., :end].unflatten(-1, (block, -1))  # [layers, blocks, vectors, block, width]
    scales = memory[..., end:].view(torch.int16).unflatten(-1, (-1, block))  # [layers, blocks, vectors, parts, block]
    found = values[:, source[0], :, source[1]], scales[:, source[0], :, :, source[1]]
    values[:, target[0], :, target[1]], scales[:, target[0], :, :, target[1]] = found
