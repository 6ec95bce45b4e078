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
        self._sent: dict[LayerPlace, int] = first  # blocks before this one were sent, or are not needed
        self._queue: dict[LayerPlace, None] = {}  # ordered set of layers with blocks to send

    def ready(self, group: int, layer: int, upto: int) -> None:
        """Records that this layer's blocks before `upto` are final. Raises `IllegalMove` for foreign blocks."""
        key = (group, layer)
        if key not in self._ready or not 0 <= upto <= self.blocks[group].stop:
            raise IllegalMove(f"group {group}, layer {layer}, block {upto} is not part of this handoff")
        self._ready[key] = max(upto, self._ready[key])
        if self._ready[key] > self._sent[key]:
            self._queue[key] = None

    def skip(self, held: Sequence[int]) -> None:
        """Leaves out the first `held` blocks of each group, which the receiver has, or does not need."""
        for key in self._sent:
            self._sent[key] = max(held[key[0]], self._sent[key])
            if self._ready[key] <= self._sent[key]:
                self._queue.pop(key, None)

    @property
    def waiting(self) -> bool:
        """Whether final blocks wait to be sent."""
        return bool(self._queue)

    def next_payload(self, frame: int, after: Payload | None = None) -> Payload | None:
        """Returns the next payload, of at most `frame` bytes or one block; None if no more blocks are final.

        With `after`, which is the next payload, returns the one that follows it.
        """
        layers = iter(self._queue)
        key = next(layers, None)
        if key is None:
            return None
        first = self._sent[key]
        if after is not None:
            first += after.count
            if first == self._ready[key]:
                key = next(layers, None)
                if key is None:
                    return None
                first = self._sent[key]
        group, layer = key
        block_bytes = self._block_bytes[group]
        count = min(self._ready[key] - first, max(1, frame // block_bytes))
        return Payload(group, layer, first, count, count * block_bytes)

    def taken(self, payload: Payload) -> None:
        """Records that the channel took this payload, which must be the next."""
        key = (payload.group, payload.layer)
        assert payload.first == self._sent[key], "payloads leave in order"
        self._sent[key] += payload.count
        if self._sent[key] == self._ready[key]:
            del self._queue[key]

    def computed(self) -> bool:
        """Whether every block of every layer is final or held by the receiver."""
        return all(max(self._sent[p], ready) == self.blocks[p[0]].stop for p, ready in self._ready.items())

    def complete(self) -> bool:
        """Whether every block was sent or is held by the receiver."""
        return all(sent == self.blocks[p[0]].stop for p, sent in self._sent.items())
