"""The pools of all ranks of a worker as one pool of whole blocks, so that a handoff's two ends may differ in width.

A rank's part of a block is a contiguous range of the block's vectors: those of its KV heads. Ranks that hold the same
KV head have the same part, and latent vectors are whole on every rank. A whole block has the parts in the order of the
ranks, each once, which is the block of a worker of one rank; with a codec, all scales come before all values.

Rank 0 maps the other ranks' memory, on a host or on its GPUs. Its I/O thread reads and lands whole blocks there, in one
copy more than in the pool of a single rank; a prefill worker of the host may write each rank's part itself. Two rules
keep them in order with the steps of the other ranks: `engine.executor` reports a layer as stored after a sum of all
ranks behind the stores, and a step or a move ends on rank 0 only when no rank still reads or writes KV for it. A step
that reads what has landed begins by a message of rank 0 on a CPU, and on GPUs by a sum of all ranks, which rank 0's
stream reaches behind the landing.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from contracts.errors import MessageError
from contracts.kinds import Codec
from contracts.kv.spec import SCALE_BYTES, KVSpec, PayloadConversion
from engine.kv.gpu.device_pools import DevicePools
from engine.kv.payload import Payload, blocks_of_payload, refuse_other_size
from engine.kv.pool import KVPool
from infra.memory.unlocked_copy import joined

Rows = npt.NDArray[np.uint8]  # [blocks, bytes]


class RankPools:
    """Implements `kvtransfer.memory.KVMemory` over the pool of each rank, rank 0's first."""

    def __init__(self, pools: Sequence[KVPool], spec: KVSpec) -> None:
        """`spec` describes whole blocks."""
        self.spec = spec
        self.counts = pools[0].counts
        is_shared = all(pool.descriptors for pool in pools)
        self.descriptors = tuple(each for pool in pools for each in pool.descriptors if is_shared)  # rank 0's first
        self._pools = pools
        self._own = pools[0].spec
        self._parts = [whole.vectors // own.vectors for whole, own in zip(spec.groups, self._own.groups, strict=True)]

    @property
    def devices(self) -> DevicePools | None:
        """Copies to and from pools in GPUs of other processes; None on a CPU."""
        pools = [pool.device_bytes for pool in self._pools if pool.device_bytes is not None]
        if not pools:
            return None
        return DevicePools(pools, self._own, self.spec, lambda: [pool.handles() for pool in self._pools])

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        return all(pool.ready(group, layer, blocks) for pool in self._pools)

    def begin_read(
        self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none"
    ) -> Callable[[], list[memoryview]]:
        """Begins to read all parts; the result puts them together in one view of separate memory."""
        parts = self._parts[group]
        holders = [
            self._pools[part * len(self._pools) // parts] for part in range(parts)
        ]  # the first rank with each part
        reads = [pool.begin_read(group, layer, blocks, codec) for pool in holders]
        return partial(self._whole, reads, group, len(blocks), codec)

    def _whole(
        self, reads: Sequence[Callable[[], list[memoryview]]], group: int, blocks: int, codec: Codec
    ) -> list[memoryview]:
        size = self.spec.groups[group].wire_bytes(codec, self.spec.dtype)
        whole = np.empty((blocks, size), np.uint8)
        for part, views in enumerate(reads):
            part_rows = _rows(views(), blocks)
            for in_part, in_whole in self._ranges(group, part, part_rows.shape[1], codec):
                whole[:, in_whole] = part_rows[:, in_part]
        return [whole.reshape(-1).data]

    def landed(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        """Returns a copy of the parts that another process has filled. Raises `MessageError` if ranks differ in one."""
        parts = self._parts[group]
        views = [pool.landed(group, layer, blocks) for pool in self._pools]
        holders = [
            [views[rank] for rank in range(len(views)) if rank * parts // len(views) == part] for part in range(parts)
        ]
        if any(joined(other) != joined(first) for first, *others in holders for other in others):
            raise MessageError("ranks that hold the same KV got other bytes")
        return self._whole([partial(list, first) for first, *_ in holders], group, len(blocks), "none")

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        """Lands whole blocks. Raises `MessageError` for a wrong size."""
        refuse_other_size(self.spec, group, len(blocks), payload)
        whole = _rows(payload, len(blocks))
        for rank, pool in enumerate(self._pools):
            pool.write(group, layer, blocks, [self._part(whole, group, rank, "none")])

    def convert(self, piece: PayloadConversion, payload: Payload) -> None:
        """Lands whole blocks in another wire form, as `KVPool.convert` does."""
        whole = _rows(payload, blocks_of_payload(self.spec, piece, payload))
        for rank, pool in enumerate(self._pools):
            pool.convert(piece, [self._part(whole, piece.group, rank, piece.form.codec)])

    def _part(self, whole: Rows, group: int, rank: int, codec: Codec) -> memoryview:
        """Returns a copy of a rank's part of `whole` blocks."""
        parts = self._parts[group]
        part_rows = np.empty((len(whole), whole.shape[1] // parts), np.uint8)
        for in_part, in_whole in self._ranges(group, rank * parts // len(self._pools), part_rows.shape[1], codec):
            part_rows[:, in_part] = whole[:, in_whole]
        return part_rows.reshape(-1).data

    def _ranges(self, group: int, part: int, size: int, codec: Codec) -> Iterator[tuple[slice, slice]]:
        """Yields the ranges of bytes of a part of `size` bytes: in the part, and in the whole block."""
        own = self._own.groups[group]
        scales = 0 if codec == "none" else own.vectors * max(1, len(own.parts)) * SCALE_BYTES
        for begin, end in ((0, scales), (scales, size)):
            first = begin * self._parts[group] + part * (end - begin)
            yield slice(begin, end), slice(first, first + end - begin)


def _rows(payload: Payload, blocks: int) -> Rows:
    return np.frombuffer(joined(payload), np.uint8).reshape(blocks, -1)
