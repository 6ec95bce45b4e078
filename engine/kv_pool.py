"""The memory of all KV blocks, and its bytes as the I/O thread sees them.

One tensor per group, `[layers, blocks, kv_heads, 2, block, head_dim]`: adjacent blocks of a layer are adjacent in
memory, so runs of blocks leave as one frame. On a CPU the pool is an anonymous mapping, which begins at a page, costs
no memory before it is used, and is read without a copy. On CUDA bytes pass through pinned memory on a stream of their
own; moves of blocks belong to the engine's stream, like the steps that they are between.
"""

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.config import Codec
from core.errors import MessageError
from core.kvspec import KVGroup, KVSpec, Piece, blocks_for, kv_bytes
from engine.architectures import ModelConfig, computation
from engine.block_mover import WORD, BlockMover, TorchMover, words_of
from engine.device import dtype_name, to_device
from engine.host_tier import HostTier
from engine.move_batches import batches
from engine.pages_ahead import PagesAhead
from engine.plan import BlockMove
from engine.runs import runs

Payload = Sequence[memoryview | bytes]
NULL = 0
"""The block that padding reads; nothing is ever moved or landed there."""
STAGED = 32 << 20
"""Bytes that one batch of moves gathers before it scatters them."""


def make_spec(config: ModelConfig, dtype: torch.dtype, block_tokens: int, weights: str) -> KVSpec:
    """One group of full attention over all layers: a window's old blocks are kept as well."""
    block_bytes = kv_bytes(1, block_tokens, 1, config.kv_heads, config.head_dim, dtype.itemsize)
    group = KVGroup("full", tuple(range(config.layers)), block_tokens, block_bytes, vectors=2 * config.kv_heads)
    axes = f"[block,kv_head:{config.kv_heads},key|value,token,dim:{config.head_dim}]"
    return KVSpec((group,), f"{axes} {computation(config).decode()}", weights, dtype_name(dtype))


class KVPool:
    """Blocks 0 … `block_count` - 1 of every layer; block 0 is the null block, which stays zero."""

    def __init__(
        self,
        config: ModelConfig,
        spec: KVSpec,
        block_count: int,
        device: torch.device,
        dtype: torch.dtype,
        tier: HostTier | None = None,
        mover: BlockMover | None = None,
    ) -> None:
        """`mover`: what carries blocks; by default PyTorch."""
        assert block_count >= 2, "a pool needs the null block and one more"
        self._tier = tier
        self._mover = mover or TorchMover()
        self.spec = spec
        self.block_count = block_count
        group = spec.groups[0]
        shape = (len(group.layers), block_count, config.kv_heads, 2, group.block_tokens, config.head_dim)
        self._layer_bytes = block_count * group.block_bytes
        self._block_bytes = group.block_bytes
        if device.type == "cuda":
            self._tensor = torch.zeros(shape, dtype=dtype, device=device)
            self._bytes: _HostBytes | _DeviceBytes = _DeviceBytes(self._tensor, self._mover)
        else:
            # Private memory gets huge pages; what is shared, as is mmap's default, mostly does not.
            memory = mmap.mmap(-1, len(group.layers) * self._layer_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._tensor = torch.frombuffer(memory, dtype=dtype).view(shape)
            ahead = PagesAhead(memory, len(group.layers), block_count, group.block_bytes)
            self._bytes = _HostBytes(memoryview(memory), self._layer_bytes, group.block_bytes, ahead)
        self.layers = list(self._tensor.unbind(0))  # each [blocks, kv_heads, 2, block, head_dim]

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carries moves out, each seeing the result of those before it. Used by the engine's thread.

        On CUDA enqueued on its stream: after the steps that were launched, and before what `read` and `write` are
        called for afterwards.
        """
        self._bytes.begin_step()
        for batch in batches(moves, max(1, STAGED // self.spec.block_bytes())):
            self._move(batch[0].kind, batch[0].group, [move.source for move in batch], [move.target for move in batch])
        self._bytes.moved()

    def _move(self, kind: str, group: int, sources: list[int], targets: list[int]) -> None:
        tier = self._tier
        if kind != "in":
            self._check(group, 0, sources)
        if kind != "out":
            self._check(group, 0, targets)
            assert NULL not in targets, "the null block is never written"
        if kind == "copy":
            self._mover.copy(self._tensor, self._index(sources), self._index(targets))
        elif kind == "out":
            assert tier is not None, "a block goes to the host tier, but there is none"
            tier.put(targets, self._mover.gather(self._tensor, self._index(sources)))
        else:
            assert tier is not None, "a block comes from the host tier, but there is none"
            self._mover.scatter(tier.get(sources), self._tensor, self._index(targets))

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return to_device(np.array(blocks, dtype=np.int64), self._tensor.device)

    def written(self, layer: int) -> None:
        """The engine thread has stored this layer's KV of a step: what `read` finds from now on includes it."""
        self._bytes.written(layer)

    def all_written(self) -> None:
        """The same of all layers, for a step that is launched as a whole."""
        self._bytes.all_written()

    def begin_step(self) -> None:
        """The engine thread is about to use the pool: what `write` has landed before is there for the step."""
        self._bytes.begin_step()

    def enter(self, blocks: Tensor) -> None:
        """These blocks, on the pool's device, are about to get their first tokens."""
        self._bytes.enter(blocks)

    def read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none") -> list[memoryview]:
        """The bytes of `blocks` of one layer, in order, one view per run of adjacent blocks.

        On a CPU the views are the pool itself: they change when a block is reused, so its I/O reference must be held.
        """
        self._check(group, layer, blocks)
        assert codec == "none"
        return self._bytes.read(layer, blocks)

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        """Lands bytes in `blocks`, in order, however they are cut. Raises `MessageError` for a wrong size."""
        self._check(group, layer, blocks)
        assert NULL not in blocks, "the null block is never written"
        size = sum(memoryview(part).nbytes for part in payload)
        if size != len(blocks) * self._block_bytes:
            raise MessageError(f"a payload of {size} bytes for {len(blocks)} blocks of {self._block_bytes} bytes")
        self._bytes.write(layer, blocks, payload)

    def convert(self, piece: Piece, payload: Payload) -> None:
        """Lands bytes in another form."""
        raise NotImplementedError

    def _check(self, group: int, layer: int, blocks: Sequence[int]) -> None:
        assert group == 0 and 0 <= layer < len(self.layers), f"no layer {layer} in group {group}"
        assert all(0 <= block < self.block_count for block in blocks), f"blocks beyond the pool's {self.block_count}"


class _HostBytes:
    """Blocks in the host's memory: views."""

    def __init__(self, memory: memoryview, layer_bytes: int, block_bytes: int, ahead: PagesAhead) -> None:
        self._memory = memory
        self._layer_bytes = layer_bytes
        self._block_bytes = block_bytes
        self._ahead = ahead

    def written(self, layer: int) -> None:
        """The CPU has no queue: what was stored is there."""

    def all_written(self) -> None:
        """All of it is."""

    def begin_step(self) -> None:
        """The same holds for what has landed."""

    def moved(self) -> None:
        """And for what was moved."""

    def enter(self, blocks: Tensor) -> None:
        if blocks.numel():
            self._ahead.reach(int(blocks.max()))

    def read(self, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        origin, size = layer * self._layer_bytes, self._block_bytes
        return [self._memory[origin + first * size : origin + (last + 1) * size] for first, last in runs(blocks)]

    def write(self, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        self._ahead.reach(max(blocks))
        scatter(self.read(layer, blocks), payload)


class _DeviceBytes:
    """Blocks in a GPU's memory, staged through pinned host memory.

    Transfers run on a stream of their own, ordered against the steps by events: a read waits for the store of its
    layer, not for the step; a step waits for what has landed before it; and both read and write wait for the moves
    before them, which may have filled the block that is read, and still read the block that is written.
    """

    def __init__(self, tensor: Tensor, mover: BlockMover) -> None:
        layers = len(tensor)
        self._tensor = tensor
        self._mover = mover
        self._words = words_of(tensor).shape[2]  # of a block of one layer
        cuda: Any = torch.cuda
        self._stream: torch.cuda.Stream = cuda.Stream(tensor.device, priority=-1)  # before the blocks of large grids
        self._written: list[torch.cuda.Event] = [cuda.Event() for _ in range(layers)]
        self._all_written: torch.cuda.Event = cuda.Event()
        self._landed: torch.cuda.Event = cuda.Event()
        self._moved: torch.cuda.Event = cuda.Event()

    def written(self, layer: int) -> None:
        self._written[layer].record(torch.cuda.current_stream(self._tensor.device))

    def all_written(self) -> None:
        self._all_written.record(torch.cuda.current_stream(self._tensor.device))

    def begin_step(self) -> None:
        torch.cuda.current_stream(self._tensor.device).wait_event(self._landed)

    def moved(self) -> None:
        self._moved.record(torch.cuda.current_stream(self._tensor.device))

    def enter(self, blocks: Tensor) -> None:
        """A device's memory is there from the beginning."""

    def read(self, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        """A fresh buffer each time, which lives as long as its view: the sender may keep it in flight."""
        staging = self._staging(blocks)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._written[layer])
            self._stream.wait_event(self._all_written)
            self._stream.wait_event(self._moved)
            staging.copy_(self._mover.gather(self._tensor[layer : layer + 1], self._index(blocks)), non_blocking=True)
        self._stream.synchronize()
        return [_view(staging)]

    def write(self, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        staging = self._staging(blocks)
        scatter([_view(staging)], payload)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._moved)
            words = staging.to(self._tensor.device, non_blocking=True)
            self._mover.scatter(words, self._tensor[layer : layer + 1], self._index(blocks))
            self._landed.record(self._stream)  # steps wait for it; the host does not

    def _staging(self, blocks: Sequence[int]) -> Tensor:
        """`[blocks, 1, words]`, of one layer."""
        return torch.empty((len(blocks), 1, self._words), dtype=WORD, pin_memory=True)

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return to_device(np.array(blocks, dtype=np.int64), self._tensor.device)


def _view(staging: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host; the view keeps the tensor alive."""
    array: Any = staging.numpy()
    return memoryview(array).cast("B")


def scatter(targets: Sequence[memoryview], parts: Payload) -> None:
    """Copies `parts`, one after the other, into `targets`, one after the other; both have the same bytes in all."""
    waiting: Any = iter(targets)
    target = next(waiting, None)
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest.nbytes:
            assert target is not None
            count = min(rest.nbytes, target.nbytes)
            target[:count] = rest[:count]
            rest, target = rest[count:], target[count:]
            if not target.nbytes:
                target = next(waiting, None)


def blocks_in(memory: int, spec: KVSpec) -> int:
    """Blocks that `memory` bytes hold, the null block included."""
    return memory // spec.block_bytes()


def blocks_of_sequences(spec: KVSpec, sequences: int, tokens: int) -> int:
    """Blocks that `sequences` of `tokens` tokens could ever use, and the null block."""
    return sequences * blocks_for(tokens, spec.groups[0].block_tokens) + 1
