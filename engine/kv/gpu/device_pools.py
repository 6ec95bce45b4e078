"""Pools in GPUs of one host: a prefill worker's GPU copies blocks into a decode worker's pools, in one copy.

The decode worker offers IPC handles of its ranks' memory, and rank 0 of the prefill worker opens them all. For each
rank of the decode worker, the copy gathers the vectors that it holds from the prefill ranks' pools: so the two workers
may differ in their number of ranks. Both ends sum up digests over the decode worker's ranks; a word counts with its
place in the whole block.

No GPU waits for an event of another process: that process might die first, and the GPU would wait for ever. The prefill
worker reports a payload as written when its own event has passed. The decode worker grants blocks when its moves of
them have ended, and its steps and moves wait for the digest of what has landed. Hosts poll events, and wait for none.
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
"""First bits of the group's and of the layer's number in a word's place."""


class OfferedPools(Struct, frozen=True, array_like=True):
    """The offer of a decode worker: IPC handles of its ranks' pools."""

    handles: list[list[DeviceHandle]]  # of each KV group's memory, by rank
    vectors: list[int]  # in a rank's part of a block, by KV group


class RankPart(NamedTuple):
    """The range of a whole block's words that a rank holds."""

    rank: int
    begin: int
    end: int


class PieceCopy(NamedTuple):
    """The range of a whole block's words that is copied from one rank's pool into another rank's."""

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
        """The GPU whose kernels copy and digest."""
        return self._pools[0].device

    def offered(self) -> bytes:
        """Returns an encoded `OfferedPools`, for a process of this host. Raises `RankError` if none can be made."""
        return msgspec.msgpack.encode(OfferedPools(self._handles(), self._vectors))

    def opened(self, offered: bytes, counts: Sequence[int]) -> "PeerPools":
        """Opens a decode worker's pools of `counts` blocks by KV group.

        Raises `RankError` if this GPU cannot reach them, or if the offer is malformed or has other KV groups.
        """
        try:
            peer = msgspec.msgpack.decode(offered, type=OfferedPools)
        except msgspec.MsgspecError as error:
            raise RankError(f"another worker's pools are described badly: {error}") from None
        groups = {len(self._whole), len(counts), len(peer.vectors), *map(len, peer.handles)}
        if len(groups) > 1 or not peer.handles or min(peer.vectors) < 1:
            raise RankError("another worker's pools have other KV groups")
        return PeerPools(self, peer, counts)

    def granting(self, blocks: Sequence[Sequence[int]]) -> Callable[[], bool]:
        """Returns a function that returns True once a peer may write the blocks.

        Until then the GPU still runs steps or moves that use these blocks.
        """
        waiting = self._pools[0].events_before_grant(blocks)

        def ended() -> bool:
            while waiting and waiting[-1].query():
                waiting.pop()
            return not waiting

        return ended

    def landed(self, group: int, layer: int, first: int, blocks: Sequence[int]) -> DeviceDigest:
        """Digests blocks of a layer that another process has filled, from the sequence's block `first` on."""

        def launch(index: Tensor) -> list[Tensor]:
            return [
                pool.digest(layer, index, self.span(group, layer, first, PieceCopy(part, part, part.begin, part.end)))
                for pool, part in zip(self._pools, self.parts(group), strict=True)
            ]

        return self._pools[0].digested_landing(group, blocks, launch)

    def copy(
        self,
        place: tuple[int, int, int],
        blocks: Sequence[int],
        targets: Sequence[tuple[RankPart, Tensor]],
        target_blocks: Sequence[int],
    ) -> DeviceDigest:
        """Copies blocks of a layer into a peer's pools.

        `place` is the KV group, the layer, and the index of the first block in its sequence. `targets` are the peer's
        ranks: each one's part of a block, and the layer in its pool, int64 `[blocks, words]`.
        """
        group, layer, first = place
        sources = list({part.begin: part for part in reversed(self.parts(group))}.values())  # a part's first rank

        def launch(index: Tensor, target_index: Tensor) -> list[Tensor]:
            digests = []
            for target, words in targets:
                for source in sources:
                    begin, end = max(source.begin, target.begin), min(source.end, target.end)
                    if begin < end:
                        span = self.span(group, layer, first, PieceCopy(source, target, begin, end))
                        digests.append(
                            self._pools[source.rank].copy_and_digest(layer, index, words, target_index, span)
                        )
            return digests

        return self._pools[0].digested_read(group, layer, blocks, target_blocks, launch)

    def warm_up(self) -> None:
        """Compiles the kernels, on pools with three blocks in each group."""
        for group in range(len(self._whole)):
            layer, part = self.layers(group)[0], self.parts(group)[0]
            self.copy((group, layer, 0), [1], [(part, self._pools[0].words(layer))], [2])
            self.landed(group, layer, 0, [2])

    def parts(self, group: int, vectors: int = 0, ranks: int = 0) -> list[RankPart]:
        """Returns each rank's part of a whole block, in words.

        The ranks are this worker's, or those of a peer with `ranks` ranks, each with `vectors` vectors in a block.
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

    def span(self, group: int, layer: int, first: int, piece: PieceCopy) -> WordSpan:
        """Returns a piece of blocks from the sequence's block `first` on, with its place in the handoff's digest."""
        words = self.words(group)
        place = PLACES_BEGIN | group << GROUP_BITS | layer << LAYER_BITS
        source, target, begin, end = piece
        return WordSpan(begin - source.begin, begin - target.begin, end - begin, place + first * words + begin, words)


class PeerPools:
    """Implements `kvtransfer.memory.PeerMemory`: the pools of a decode worker, in memory that this GPU writes."""

    def __init__(self, own: DevicePools, peer: OfferedPools, counts: Sequence[int]) -> None:
        """Raises `RankError` as `DevicePools.opened` does."""
        self._own = own
        self._targets: dict[int, list[tuple[RankPart, Tensor]]] = {}  # by layer
        for group, (vectors, count) in enumerate(zip(peer.vectors, counts, strict=True)):
            layers = own.layers(group)
            for part, handles in zip(own.parts(group, vectors, len(peer.handles)), peer.handles, strict=True):
                shape = (len(layers), count, part.end - part.begin)
                memory = opened(handles[group], shape, WORD_DTYPE, own.device)
                for layer, words in zip(layers, memory, strict=True):
                    self._targets.setdefault(layer, []).append((part, words))

    def write(
        self, group: int, layer: int, first: int, blocks: Sequence[int], target_blocks: Sequence[int]
    ) -> DeviceDigest:
        """Begins to copy blocks of a layer, from the sequence's block `first` on, into blocks of the peer."""
        return self._own.copy((group, layer, first), blocks, self._targets[layer], target_blocks)
