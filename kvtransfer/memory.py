"""Says what the handoff needs of a KV pool: bytes of blocks, out and in."""

from collections.abc import Sequence
from typing import Protocol

from contracts.kinds import Codec
from contracts.kv.spec import PayloadConversion


class KVMemory(Protocol):
    """Reads and writes blocks of the pool. One of group g has `spec.groups[g].block_bytes` bytes in each layer."""

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        """Tells whether these blocks can be read now, without waiting for a device that has still to compute them."""
        ...

    def read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none") -> list[memoryview]:
        """Returns the blocks' bytes in the given order as contiguous byte views, each a whole number of blocks.

        Neighbours in the pool are coalesced. The views must stay readable until the handoff's `Unpinned`. With a
        codec they are what it made of the blocks, as `contracts.kv.spec.WireForm` says.
        """
        ...

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Sequence[memoryview | bytes]) -> None:
        """Copies the payload, however its bytes are cut, into the blocks in the given order."""
        ...

    def convert(self, piece: PayloadConversion, payload: Sequence[memoryview | bytes]) -> None:
        """Lands a payload that is in another form than the pool, however its bytes are cut.

        Tokens before `piece.held`, and behind the last of `piece.blocks`, are left out. Raises `MessageError` for a
        payload that is not a whole number of the sender's blocks.
        """
        ...
