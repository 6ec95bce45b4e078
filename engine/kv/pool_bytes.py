"""The interface of a pool's bytes: memory of the host, or of a device behind pinned memory of the host."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import PayloadConversion
from engine.kv.payload import Payload
from engine.plan import Work


class PoolBytes(Protocol):
    """A pool's bytes: the engine's thread reports its use of blocks, the I/O thread reads and lands bytes."""

    def begin_step(self, works: Sequence[Work] | None, *, is_read: bool) -> None: ...

    def begin_moves(self, blocks: Sequence[Sequence[int]]) -> None:
        """Orders the next moves of these blocks of each group after all landings in them."""
        ...

    def written(self, layer: int) -> None:
        """Marks the newest step's KV of this layer as stored."""
        ...

    def all_written(self) -> None:
        """Marks the newest step's KV of all layers as stored."""
        ...

    def moved(self, targets: Sequence[Sequence[int]]) -> None:
        """Marks these blocks of each group as filled from other blocks or from the host tier."""
        ...

    def begin(self) -> None:
        """Allocates the memory of the blocks that the first requests will use."""
        ...

    def enter(self, group: int, blocks: Tensor) -> None: ...

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool: ...

    def begin_read(
        self, group: int, layer: int, blocks: Sequence[int], codec: Codec
    ) -> Callable[[], list[memoryview]]: ...

    def landed(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        """Returns the bytes of blocks that another process has filled."""
        ...

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        """Lands a payload of the size of these blocks."""
        ...

    def convert(self, piece: PayloadConversion, count: int, payload: Payload) -> None:
        """Lands a payload of the size of `count` blocks in the wire form of `piece`."""
        ...
