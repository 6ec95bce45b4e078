"""Memory of all KV blocks, and access to its bytes for the I/O thread.

One tensor per group, `[layers, blocks, vectors, block, width]`, or `[layers, blocks, vectors, bytes]` for values of one
byte with scales (`engine/model/kv_layout.py` has both layouts): adjacent blocks of a layer are adjacent in memory, so
runs of blocks are sent as one frame. Only attention interprets the vectors. On a CPU each tensor is an anonymous
mapping, or one that other processes may share, which is page-aligned, costs no memory before it is used, and is read
without a copy (`host/host_bytes.py`). On CUDA bytes pass through pinned memory on a separate stream
(`gpu/device_bytes.py`); moves of blocks run on the engine's stream, between steps. Wire codecs and other pools' formats
are converted on the way (`codec.py`); quantized blocks are sent and received unchanged.

Layers are always numbered as in the model.
"""

import mmap
import os
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import KVGroup, KVSpec, PayloadConversion
from engine.device import DTYPES_BY_NAME, to_device
from engine.kv.codec import BlockCodec
from engine.kv.gpu.device_bytes import DeviceBytes
from engine.kv.gpu.device_pools import DevicePools
from engine.kv.host.host_bytes import HostBytes
from engine.kv.host.host_tier import HostTier
from engine.kv.host.pages_ahead import PagesAhead, bytes_ahead
from engine.kv.mover import BlockMover
from engine.kv.moves import batches
from engine.kv.payload import Payload, blocks_of_payload, refuse_other_size
from engine.kv.pool_bytes import PoolBytes
from engine.kv.token_moves import TokenSlots, move_tokens
from engine.model.kv_layout import KV_FORM_BY_DTYPE
from engine.parallel.device_handle import DeviceHandle, handle_of, opened
from engine.plan import NULL_BLOCK, BlockMove, TreeKVMoves, Work
from infra.memory.shared_mapping import map_shared, shared_memory

STORED_DTYPES: dict[str, torch.dtype] = {
    **DTYPES_BY_NAME,
    **{str(name): dtype for dtype, name in KV_FORM_BY_DTYPE.items()},
}
"""Dtypes of a pool's tensors by name."""
STAGED_BYTES = 32 << 20
"""Maximum bytes that a batch of moves gathers before it scatters them."""


class KVPool:
    """Blocks 0 … `counts[group]` - 1 of every layer; block 0 is the null block, which stays zero."""

    def __init__(
        self,
        spec: KVSpec,
        counts: Sequence[int],
        device: torch.device,
        mover: BlockMover,
        codec: BlockCodec,
        tier: HostTier | None = None,
        *,
        is_shared: bool = False,
        descriptors: Sequence[int] = (),
        handles: Sequence[DeviceHandle] = (),
        own: "KVPool | None" = None,
    ) -> None:
        """Allocates the memory of all blocks; a CPU's memory may be shared with processes that write KV into it.

        `descriptors` are files with each group's memory, made by another process, and are closed with the pool;
        `handles` are of each group's memory in another rank's GPU. `own`: rank 0's pool, if this one is another rank's
        on a GPU.

        `mover` moves blocks and `codec` converts them, both on `device`; evicted blocks of the first group go to the
        `tier`. Raises `OSError` if no memory can be shared.
        """
        assert min(counts) >= 2, "a pool needs the null block and one more"
        self._tier = tier
        self._mover = mover
        self._device = device
        self.spec = spec
        self.counts = tuple(counts)
        self.descriptors: tuple[int, ...] = ()  # of each group's memory, if it is shared
        dtype = STORED_DTYPES[spec.dtype]
        shapes = [
            (len(group.layers), count, group.vectors, *_shape_of(group, spec))
            for group, count in zip(spec.groups, counts, strict=True)
        ]
        self._bytes: PoolBytes
        self._handles = list(handles)
        if device.type == "cuda":
            self._tensors = _device_tensors(shapes, dtype, device, handles)
            self._bytes = DeviceBytes(self._tensors, spec, mover, codec, None if own is None else own.device_bytes)
        else:
            sizes = bytes_of_groups(spec, counts)
            if is_shared or descriptors:
                self.descriptors = tuple(descriptors) or tuple(shared_memory("baton-kv-pool", size) for size in sizes)
                weakref.finalize(self, _close_all, self.descriptors)
            memory = _host_memory(sizes, self.descriptors)
            self._tensors = [
                torch.frombuffer(of_group, dtype=dtype).view(shape)
                for of_group, shape in zip(memory, shapes, strict=True)
            ]
            pages = _pages_ahead(memory, spec, counts, is_shared=bool(self.descriptors))
            self._bytes = HostBytes(self._tensors, spec, pages, codec)
        by_layer: dict[int, Tensor] = {}
        for group, tensor in zip(spec.groups, self._tensors, strict=True):
            by_layer |= zip(group.layers, tensor, strict=True)
        self.layers = [
            by_layer[layer] for layer in range(len(by_layer))
        ]  # each [blocks, vectors, block, width], or bytes

    def handles(self) -> list[DeviceHandle]:
        """Returns handles of each group's memory on a GPU, for a process that reads and writes blocks there."""
        self._handles = self._handles or [handle_of(tensor) for tensor in self._tensors]
        return self._handles

    @property
    def device_bytes(self) -> DeviceBytes | None:
        """The pool's bytes, if they are in a GPU's memory."""
        return self._bytes if isinstance(self._bytes, DeviceBytes) else None

    @property
    def devices(self) -> DevicePools | None:
        """Copies to and from pools in GPUs of other processes; None on a CPU."""
        if self.device_bytes is None:
            return None
        return DevicePools([self.device_bytes], self.spec, self.spec, lambda: [self.handles()])

    def move(self, moves: Sequence[BlockMove], barrier: Callable[[], None] = lambda: None) -> None:
        """Carries moves out, each seeing the results of earlier moves. Used by the engine's thread.

        On CUDA they are enqueued on its stream: after all launched steps, and before later calls of `read` and `write`.
        `barrier` lets the ranks of a worker wait for each other: before the moves, which see what has landed on any
        rank, and after them, when KV may land and be read again.
        """
        if not moves:
            return
        groups = range(len(self.counts))
        targets = [[move.target for move in moves if move.kind != "out" and move.group == group] for group in groups]
        sources = [[move.source for move in moves if move.kind != "in" and move.group == group] for group in groups]
        self._bytes.begin_moves([[*into, *out_of] for into, out_of in zip(targets, sources, strict=True)])
        barrier()
        for batch in batches(moves, max(1, STAGED_BYTES // max(group.layers_bytes() for group in self.spec.groups))):
            self._move(batch[0].kind, batch[0].group, [move.source for move in batch], [move.target for move in batch])
        barrier()
        self._bytes.moved(targets)

    def move_tokens(self, moves: Sequence[TreeKVMoves], barrier: Callable[[], None] = lambda: None) -> None:
        """Copies tokens' KV within their sequences, in all layers, all at once; otherwise like `move`."""
        slots = [self._token_slots(group, moves) for group in range(len(self.counts))]
        self._bytes.begin_moves([[*sources.blocks, *targets.blocks] for sources, targets in slots])
        barrier()
        for tensor, group, (sources, targets) in zip(self._tensors, self.spec.groups, slots, strict=True):
            move_tokens(tensor, group, *self._index([*sources.slots, *targets.slots]).chunk(2))
        barrier()
        self._bytes.moved([targets.blocks for _, targets in slots])

    def _token_slots(self, group: int, moves: Sequence[TreeKVMoves]) -> tuple[TokenSlots, TokenSlots]:
        block = self.spec.groups[group].block_tokens
        sources = TokenSlots.of([(each.blocks[group], source) for each in moves for source, _ in each.places], block)
        targets = TokenSlots.of([(each.blocks[group], target) for each in moves for _, target in each.places], block)
        self._check(group, [*sources.blocks, *targets.blocks])
        assert NULL_BLOCK not in targets.blocks, "the null block is never written"
        return sources, targets

    def _move(self, kind: str, group: int, sources: list[int], targets: list[int]) -> None:
        self._check(group, [] if kind == "in" else sources)
        if kind != "out":
            self._check(group, targets)
            assert NULL_BLOCK not in targets, "the null block is never written"
        tier, tensor = self._tier, self._tensors[group]
        if kind == "copy":
            self._mover.copy(tensor, self._index(sources), self._index(targets))
        elif kind == "out":
            assert tier is not None and group == 0, "a block goes to the host tier, but there is none"
            tier.put(targets, self._mover.gather(tensor, self._index(sources)))
        else:
            assert tier is not None and group == 0, "a block comes from the host tier, but there is none"
            self._mover.scatter(tier.get(sources), tensor, self._index(targets))

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return to_device(np.array(blocks, dtype=np.int64), self._device)

    def written(self, layer: int) -> None:
        """Marks a layer's KV of a step as stored by the engine's thread, so that `read` sees it."""
        self._bytes.written(layer)

    def all_written(self) -> None:
        self._bytes.all_written()

    def begin_step(self, works: Sequence[Work] | None = None, *, is_read: bool = True) -> None:
        """Announces the launch of a step of `works`; None if it may touch any block.

        The step waits for earlier landings in its own blocks only. A read waits for the step only if the step may have
        written its blocks; without `is_read`, its writes are not recorded.
        """
        self._bytes.begin_step(works, is_read=is_read)

    def begin(self) -> None:
        self._bytes.begin()

    def enter(self, group: int, blocks: Tensor) -> None:
        self._bytes.enter(group, blocks)

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        """Returns whether `read` would not wait: on a GPU a layer is marked as written before it is computed."""
        self._check(group, blocks, layer)
        return self._bytes.ready(group, layer, blocks)

    def read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none") -> list[memoryview]:
        """Does `begin_read`, and waits for it."""
        return self.begin_read(group, layer, blocks, codec)()

    def begin_read(
        self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none"
    ) -> Callable[[], list[memoryview]]:
        """Begins to read `blocks` of one layer; the result returns their bytes, one view per run of adjacent blocks.

        On a CPU the views are the pool itself: they change when a block is reused, so hold its I/O reference. With a
        codec it is one view of separate memory, as `contracts.kv.spec.WireForm` describes.
        """
        self._check(group, blocks, layer)
        assert codec == "none" or not self.spec.quantized, "quantized blocks are sent unchanged, without a codec"
        return self._bytes.begin_read(group, layer, blocks, codec)

    def landed(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        """Returns the bytes of blocks that another process has filled in this pool's shared memory."""
        self._check(group, blocks, layer)
        return self._bytes.landed(group, layer, blocks)

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        """Lands bytes in `blocks`, in order, from frames of any sizes. Raises `MessageError` for a wrong size."""
        self._check(group, blocks, layer)
        assert NULL_BLOCK not in blocks, "the null block is never written"
        refuse_other_size(self.spec, group, len(blocks), payload)
        self._bytes.write(group, layer, blocks, payload)

    def convert(self, piece: PayloadConversion, payload: Payload) -> None:
        """Lands whole blocks in another wire form, from frames of any sizes.

        Tokens before `piece.held`, in null blocks, and after the last of `piece.blocks`, are left out. Raises
        `MessageError` for a wrong size or an unknown form.
        """
        self._check(piece.group, piece.blocks, piece.layer)
        assert piece.first >= 0
        self._bytes.convert(piece, blocks_of_payload(self.spec, piece, payload), payload)

    def _check(self, group: int, blocks: Sequence[int], layer: int | None = None) -> None:
        assert 0 <= group < len(self.counts), f"no group {group}"
        assert layer is None or layer in self.spec.groups[group].layers, f"no layer {layer} in group {group}"
        count = self.counts[group]
        assert not blocks or 0 <= min(blocks) <= max(blocks) < count, f"blocks beyond the group's {count}"


def _close_all(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


def _shape_of(group: KVGroup, spec: KVSpec) -> tuple[int, ...]:
    if spec.quantized:
        return (group.block_bytes // group.vectors,)
    return group.block_tokens, group.width(spec.dtype)


def _device_tensors(
    shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device, handles: Sequence[DeviceHandle]
) -> list[Tensor]:
    """Allocates each group's tensor on a GPU, or with `handles` opens the tensors of another rank."""
    if not handles:
        return [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
    return [opened(handle, shape, dtype, device) for handle, shape in zip(handles, shapes, strict=True)]


def _host_memory(sizes: Sequence[int], descriptors: Sequence[int]) -> list[mmap.mmap | memoryview]:
    """Maps each group's memory: the files of `descriptors`, or without any, memory of this process."""
    if not descriptors:
        return [_mapping(size) for size in sizes]
    return [map_shared(descriptor, size) for descriptor, size in zip(descriptors, sizes, strict=True)]


def _pages_ahead(
    memory: Sequence[mmap.mmap | memoryview], spec: KVSpec, counts: Sequence[int], *, is_shared: bool
) -> list[PagesAhead]:
    pages = []
    for of_group, group, count in zip(memory, spec.groups, counts, strict=True):
        ahead = bytes_ahead(group.layers_bytes(), len(memory))
        pages.append(PagesAhead(of_group, len(group.layers), count, group.block_bytes, ahead, is_shared))
    return pages


def _mapping(size: int) -> mmap.mmap:
    """Maps memory of this process. Private mappings get huge pages; shared ones, mmap's default, seldom do."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def bytes_of_groups(spec: KVSpec, counts: Sequence[int]) -> list[int]:
    """Returns the bytes of each group's blocks in all layers."""
    return [count * group.layers_bytes() for group, count in zip(spec.groups, counts, strict=True)]
