"""Cuts a handoff's KV into payloads: which blocks of which layer are final, and which were sent."""

from collections.abc import Sequence

from msgspec import Struct

from contracts.errors import IllegalMove
from contracts.kinds import Codec
from contracts.kv.spec import KVSpec
from kvtransfer.handoff import handoff_blocks

LayerPlace = tuple[int, int]  # (group, layer)


class Payload(Struct, frozen=True):
    """Blocks `first` … `first + count - 1` of the sequence, of one layer: `size` bytes."""

    group: int
    layer: int
    first: int
    count: int
    size: int


class Payloads:
    """Layers in the order in which they became ready; each of their blocks is sent once."""

    def __init__(self, spec: KVSpec, tokens: int, codec: Codec) -> None:
        self._block_bytes = [group.wire_bytes(codec, spec.dtype) for group in spec.groups]
        self.blocks = handoff_blocks(spec, tokens)  # blocks of each group that may move
        first = {(at, layer): self.blocks[at].start for at, group in enumerate(spec.groups) for layer in group.layers}
        self._ready: dict[LayerPlace, int] = dict(first)  # blocks before this one are final
        self._left: dict[LayerPlace, int] = first  # blocks before this one were sent, or are not needed
        self._queue: dict[LayerPlace, None] = {}  # ordered set of layers with blocks to send

    def ready(self, group: int, layer: int, upto: int) -> None:
        """Records that this layer's blocks before `upto` are final. Raises `IllegalMove` for foreign blocks."""
        place = (group, layer)
        if place not in self._ready or not 0 <= upto <= self.blocks[group].stop:
            raise IllegalMove(f"group {group}, layer {layer}, block {upto} is not part of this handoff")
        self._ready[place] = max(upto, self._ready[place])
        if self._ready[place] > self._left[place]:
            self._queue[place] = None

    def skip(self, held: Sequence[int]) -> None:
        """Leaves out the first `held` blocks of each group, which the receiver has, or does not need."""
        for place in self._left:
            self._left[place] = max(held[place[0]], self._left[place])
            if self._ready[place] <= self._left[place]:
                self._queue.pop(place, None)

    @property
    def waiting(self) -> bool:
        """Whether final blocks wait to be sent."""
        return bool(self._queue)

    def head(self, frame: int, behind: Payload | None = None) -> Payload | None:
        """Returns the next payload, of at most `frame` bytes or one block; None if no more blocks are final.

        With `behind`, the next payload, returns the payload after it.
        """
        places = iter(self._queue)
        place = next(places, None)
        if place is None:
            return None
        first = self._left[place]
        if behind is not None:
            first += behind.count
            if first == self._ready[place]:
                place = next(places, None)
                if place is None:
                    return None
                first = self._left[place]
        group, layer = place
        block_bytes = self._block_bytes[group]
        count = min(self._ready[place] - first, max(1, frame // block_bytes))
        return Payload(group, layer, first, count, count * block_bytes)

    def left(self, payload: Payload) -> None:
        """Records that the channel took this payload, which must be the next."""
        place = (payload.group, payload.layer)
        assert payload.first == self._left[place], "payloads leave in order"
        self._left[place] += payload.count
        if self._left[place] == self._ready[place]:
            del self._queue[place]

    def computed(self) -> bool:
        """Whether every block of every layer is final or held by the receiver."""
        return all(max(self._left[p], ready) == self.blocks[p[0]].stop for p, ready in self._ready.items())

    def complete(self) -> bool:
        """Whether every block was sent or is held by the receiver."""
        return all(left == self.blocks[p[0]].stop for p, left in self._left.items())
