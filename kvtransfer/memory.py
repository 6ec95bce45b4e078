"""The handoff's view of a KV pool: reading and writing bytes of blocks."""

from collections.abc import Callable, Sequence
from typing import Protocol

from contracts.kinds import Codec
from contracts.kv.spec import PayloadConversion


class DigestedCopy(Protocol):
    """Blocks that a GPU copies or reads, and digests."""

    @property
    def done(self) -> bool:
        """Whether the copy and the digest have ended. The host does not wait for them."""
        ...

    @property
    def digest(self) -> int:
        """The digest; only when it is done."""
        ...


class PeerMemory(Protocol):
    """A decode worker's pool in the memory of GPUs that this worker's GPU reaches."""

    def write(
        self, group: int, layer: int, first: int, blocks: Sequence[int], target_blocks: Sequence[int]
    ) -> DigestedCopy:
        """Begins to copy blocks of a layer, from the sequence's block `first` on, into blocks of the peer."""
        ...


class KVDevices(Protocol):
    """A pool in the memory of one or several GPUs."""

    def offered(self) -> bytes:
        """Returns an offer for `opened` in a process of this host. Raises `DeviceError` if memory cannot be shared."""
        ...

    def opened(self, offered: bytes, counts: Sequence[int]) -> PeerMemory:
        """Opens another worker's pool of `counts` blocks by KV group. Raises `DeviceError` if no GPU reaches it."""
        ...

    def granting(self, blocks: Sequence[Sequence[int]]) -> Callable[[], bool]:
        """Returns a function that tells whether another process may write into these blocks of each group now."""
        ...

    def landed(self, group: int, layer: int, first: int, blocks: Sequence[int]) -> DigestedCopy:
        """Takes blocks that another process has filled, from the sequence's block `first` on."""
        ...


class KVMemory(Protocol):
    """Reads and writes blocks. A block of group g has `spec.groups[g].block_bytes` bytes in each layer."""

    counts: tuple[int, ...]
    """Blocks of each group. Its memory is `[layers, blocks, bytes]`."""
    descriptors: tuple[int, ...]
    """Files of the groups' memory, if processes of this host may share it (`infra.memory.shared_mapping`)."""

    @property
    def devices(self) -> KVDevices | None:
        """The pool as GPUs of other processes reach it; None on a CPU."""
        ...

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        """Whether these blocks can be read without waiting for a device that still computes them."""
        ...

    def begin_read(
        self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none"
    ) -> Callable[[], list[memoryview]]:
        """Begins to read blocks; the result waits for a device, if any, and returns their bytes as views.

        The views are contiguous, each of whole blocks in the given order; neighbours in the pool are coalesced. They
        must stay readable until the handoff's `Unpinned`. With a codec they hold the encoded blocks
        (`contracts.kv.spec.WireForm`).
        """
        ...

    def landed(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        """Returns the bytes of blocks that another process has filled in the shared memory, as views."""
        ...

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Sequence[memoryview | bytes]) -> None:
        """Copies a payload, however it is split, into the blocks in the given order."""
        ...

    def convert(self, piece: PayloadConversion, payload: Sequence[memoryview | bytes]) -> None:
        """Writes a payload of another format than the pool's, however it is split.

        Skips tokens before `piece.held` and behind the last of `piece.blocks`. Raises `MessageError` for a payload that
        is not a whole number of the sender's blocks.
        """
        ...
