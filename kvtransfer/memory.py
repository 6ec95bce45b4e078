"""What the handoff needs to know of a KV pool: bytes of blocks, out and in."""

from collections.abc import Sequence
from typing import Protocol


class KVMemory(Protocol):
    """Blocks by (group, layer, block number in the pool). A block of group g has `spec.groups[g].block_bytes` bytes."""

    def read(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        """The blocks' bytes in the given order as contiguous byte views, each a whole number of blocks.

        Neighbours in the pool are coalesced. The views must stay readable until the handoff's `Unpinned`.
        """
        ...

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Sequence[memoryview | bytes]) -> None:
        """Copies the payload, a whole number of blocks per frame, into the blocks in the given order."""
        ...
