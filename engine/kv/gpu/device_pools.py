"""Pools in GPUs of one host: a prefill worker's GPU copies blocks into a decode worker's pools, in one copy.

The decode worker tells the handles of its ranks' memory, and rank 0 of the prefill worker opens them all. For each rank
that is written, the copy takes the vectors that this rank holds out of the pools of the ranks that have them: so the
widths of both workers may differ. Both ends add up digests over the ranks that are written, at the places that words
have in whole blocks.

No GPU waits for an event of another process, which might die before its event comes to pass: it would wait for ever.
The prefill worker tells that a payload is written when its own event has passed; the decode worker grants blocks when
its moves of them have ended, and its steps and moves wait for the digest of what has landed. Hosts look at events, and
wait for none.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from contracts.errors import RankError
from contracts.kv.spec import KVSpec
from engine.kv.gpu.device_bytes import DeviceBytes
from engine.kv.gpu.device_digest import DeviceDigest
from engine.kv.mover import WORD_DTYPE, WordSpan
from engine.parallel.device_handle import DeviceHandle, opened

PLACES_BEGIN = 1 << 62
GROUP_BITS, LAYER_BITS = 54, 40
"""Where the numbers of group and layer begin in a word's place."""


class OfferedPools(Struct, frozen=True, array_like=True):
    """How another process of the host reaches the pools of a worker's ranks."""

    handles: list[list[DeviceHandle]]  # of each KV group's memory, by rank
    vectors: list[int]  # of a rank's block, by KV group


class RankPart(NamedTuple):
    """The words of whole blocks that a rank holds."""

    rank: int
    begin: int
    end: int


class CutPiece(NamedTuple):
    """Words of whole blocks that go from one rank's pool into another rank's."""

    source: RankPart
    target: RankPart
    begin: int
    end: int


class DevicePools:
    """Implements `kvtransfer.memory.KVDevices` over the pools of a worker's ranks, rank 0's first."""

    def __init__(
        self,
        pools: Sequence[DeviceBytes],
        own: KVSpec,
        whole: KVSpec,
        handles: Callable[[], list[list[DeviceHandle]]],
    ) -> None:
        """`own` describes a rank's blocks, `whole` the blocks of all ranks; `handles` makes each rank's IPC handles."""
        self._pools = pools
        self._vectors = [group.vectors for group in own.groups]
        self._whole = whole.groups
        self._handles = handles

    @property
    def device(self) -> torch.device:
        """The GPU whose kernels copy and read."""
        return self._pools[0].device

    def offered(self) -> bytes:
        """Returns what `opened` takes in another process of this host. Raises `RankError` if nothing can be shared."""
        return msgspec.msgpack.encode(OfferedPools(self._handles(), self._vectors))

    def opened(self, offered: bytes, counts: Sequence[int]) -> "PeerPools":
        """Opens a decode worker's pools of `counts` blocks by KV group.

        Raises `RankError` if this GPU has no way to them, or nothing like them is offered.
        """
        try:
            theirs = msgspec.msgpack.decode(offered, type=OfferedPools)
        except msgspec.MsgspecError as error:
            raise RankError(f"another worker's pools are described badly: {error}") from None
        groups = {len(self._whole), len(counts), len(theirs.vectors), *map(len, theirs.handles)}
        if len(groups) > 1 or not theirs.handles or min(theirs.vectors) < 1:
            raise RankError("another worker's pools have other KV groups")
        return PeerPools(self, theirs, counts)

    def granting(self, blocks: Sequence[Sequence[int]]) -> Callable[[], bool]:
        """Returns a function that tells whether steps and moves of these blocks have ended and a peer may write."""
        waiting = self._pools[0].uses_of(blocks)

        def ended() -> bool:
            while waiting and waiting[-1].query():
                waiting.pop()
            return not waiting

        return ended

    def landed(self, group: int, layer: int, first: int, blocks: Sequence[int]) -> DeviceDigest:
        """Digests blocks of a layer that another process has filled, from the sequence's block `first` on."""

        def launched(index: Tensor) -> list[Tensor]:
            return [
                pool.digest(layer, index, self.span(group, layer, first, CutPiece(part, part, part.begin, part.end)))
                for pool, part in zip(self._pools, self.parts(group), strict=True)
            ]

        return self._pools[0].digested_landing(group, blocks, launched)

    def copy(
        self,
        place: tuple[int, int, int],
        blocks: Sequence[int],
        targets: Sequence[tuple[RankPart, Tensor]],
        their_blocks: Sequence[int],
    ) -> DeviceDigest:
        """Copies blocks of a layer into other pools, of which `targets` are each rank's part and `[blocks, words]`."""
        group, layer, first = place
        held = list({part.begin: part for part in reversed(self.parts(group))}.values())  # of each part the first rank

        def launched(index: Tensor, theirs: Tensor) -> list[Tensor]:
            digests = []
            for target, words in targets:
                for source in held:
                    begin, end = max(source.begin, target.begin), min(source.end, target.end)
                    if begin < end:
                        span = self.span(group, layer, first, CutPiece(source, target, begin, end))
                        digests.append(self._pools[source.rank].copy_and_digest(layer, index, words, theirs, span))
            return digests

        return self._pools[0].digested_read(group, layer, blocks, their_blocks, launched)

    def warm_up(self) -> None:
        """Compiles the kernels, on pools with three blocks in each group."""
        for group in range(len(self._whole)):
            layer, part = self.layers(group)[0], self.parts(group)[0]
            self.copy((group, layer, 0), [1], [(part, self._pools[0].words(layer))], [2])
            self.landed(group, layer, 0, [2])

    def parts(self, group: int, vectors: int = 0, ranks: int = 0) -> list[RankPart]:
        """Returns each rank's part of a whole block, in words: of this worker, or of another one.

        The other worker has `ranks` ranks, each with `vectors` vectors in a block.
        """
        whole, ranks = self._whole[group], ranks or len(self._pools)
        parts = whole.vectors // (vectors or self._vectors[group])
        size = self.words(group) // parts
        begins = [rank * parts // ranks * size for rank in range(ranks)]
        return [RankPart(rank, begin, begin + size) for rank, begin in enumerate(begins)]

    def words(self, group: int) -> int:
        """Returns the words of a whole block."""
        return self._whole[group].block_bytes // WORD_DTYPE.itemsize

    def layers(self, group: int) -> tuple[int, ...]:
        return self._whole[group].layers

    def span(self, group: int, layer: int, first: int, piece: CutPiece) -> WordSpan:
        """Returns a piece of blocks from the sequence's block `first` on, with its place in the handoff's digest."""
        words = self.words(group)
        place = PLACES_BEGIN | group << GROUP_BITS | layer << LAYER_BITS
        source, target, begin, end = piece
        return WordSpan(begin - source.begin, begin - target.begin, end - begin, place + first * words + begin, words)


class PeerPools:
    """Implements `kvtransfer.memory.PeerMemory`: the pools of a decode worker, in memory that this GPU writes."""

    def __init__(self, own: DevicePools, theirs: OfferedPools, counts: Sequence[int]) -> None:
        """Raises `RankError` as `DevicePools.opened` does."""
        self._own = own
        self._targets: dict[int, list[tuple[RankPart, Tensor]]] = {}  # by layer
        for group, (vectors, count) in enumerate(zip(theirs.vectors, counts, strict=True)):
            layers = own.layers(group)
            for part, handles in zip(own.parts(group, vectors, len(theirs.handles)), theirs.handles, strict=True):
                shape = (len(layers), count, part.end - part.begin)
                memory = opened(handles[group], shape, WORD_DTYPE, own.device)
                for layer, words in zip(layers, memory, strict=True):
                    self._targets.setdefault(layer, []).append((part, words))

    def write(
        self, group: int, layer: int, first: int, blocks: Sequence[int], their_blocks: Sequence[int]
    ) -> DeviceDigest:
        """Begins to copy blocks of a layer, from the sequence's block `first` on, into blocks of the peer."""
        return self._own.copy((group, layer, first), blocks, self._targets[layer], their_blocks)
