"""Holds the memory of all KV blocks, and gives and takes its bytes for the I/O thread.

One tensor per group, `[layers, blocks, kv_heads, 2, block, head_dim]`: adjacent blocks of a layer are adjacent in
memory, so runs of blocks leave as one frame. On a CPU the pool is an anonymous mapping, which begins at a page, costs
no memory before it is used, and is read without a copy (`host_bytes.py`). On CUDA bytes pass through pinned memory on
a stream of their own (`device_bytes.py`); moves of blocks belong to the engine's stream, like the steps that they are
between. What a codec makes of blocks, and what other pools have, is converted on the way (`codec.py`).
"""

import mmap
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from core.config import Codec
from core.errors import MessageError
from core.kvspec import VALUE_BYTES, KVGroup, KVSpec, Piece, blocks_for, kv_bytes
from engine.device import dtype_name, to_device
from engine.kv.codec import BlockCodec, bytes_of
from engine.kv.device_bytes import DeviceBytes
from engine.kv.host_bytes import HostBytes
from engine.kv.host_tier import HostTier
from engine.kv.mover import BlockMover
from engine.kv.moves import batches
from engine.kv.pages_ahead import PagesAhead
from engine.kv.payload import Payload, size_of
from engine.model.config import TextModel, computation, heads_of
from engine.plan import NULL_BLOCK, BlockMove, Work

STAGED = 32 << 20
"""Bytes that one batch of moves gathers before it scatters them."""


def make_spec(config: TextModel, dtype: torch.dtype, block_tokens: int, weights: str) -> KVSpec:
    """Describes a model's KV as one group of full attention over all layers: a window's old blocks are kept as well."""
    heads = heads_of(config.layers[0])
    block_bytes = kv_bytes(1, block_tokens, 1, heads.kv_heads, heads.head_dim, dtype.itemsize)
    group = KVGroup("full", tuple(range(len(config.layers))), block_tokens, block_bytes, vectors=2 * heads.kv_heads)
    axes = f"[block,kv_head:{heads.kv_heads},key|value,token,dim:{heads.head_dim}]"
    return KVSpec((group,), f"{axes} {computation(config).decode()}", weights, dtype_name(dtype))


class PoolBytes(Protocol):
    """Holds a pool's bytes: the engine's thread says what it does with blocks, the I/O thread takes and lands them."""

    def begin_step(self, works: Sequence[Work] | None, *, is_read: bool) -> None:
        """See `KVPool.begin_step`."""
        ...

    def begin_moves(self, blocks: Sequence[int]) -> None:
        """Says that moves are about to read or write these blocks: what has landed in them is there for that."""
        ...

    def written(self, layer: int) -> None:
        """Says that the newest step has stored this layer's KV."""
        ...

    def all_written(self) -> None:
        """Says that the newest step has stored the KV of all layers."""
        ...

    def moved(self, targets: Sequence[int]) -> None:
        """Says that these blocks were filled from others, or from the host tier."""
        ...

    def enter(self, blocks: Tensor) -> None:
        """Says that these blocks are about to get their first tokens."""
        ...

    def ready(self, layer: int, blocks: Sequence[int]) -> bool:
        """See `KVPool.ready`."""
        ...

    def read(self, layer: int, blocks: Sequence[int], codec: Codec) -> list[memoryview]:
        """See `KVPool.read`."""
        ...

    def write(self, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        """Lands bytes that have the size of these blocks."""
        ...

    def convert(self, piece: Piece, count: int, payload: Payload) -> None:
        """Lands bytes that have the size of `count` blocks in the piece's form."""
        ...


class KVPool:
    """Holds blocks 0 … `block_count` - 1 of every layer; block 0 is the null block, which stays zero."""

    def __init__(
        self,
        config: TextModel,
        spec: KVSpec,
        block_count: int,
        device: torch.device,
        dtype: torch.dtype,
        mover: BlockMover,
        codec: BlockCodec,
        tier: HostTier | None = None,
    ) -> None:
        """`mover` carries blocks and `codec` converts them, both on `device`; blocks that give way go to the `tier`."""
        assert block_count >= 2, "a pool needs the null block and one more"
        self._tier = tier
        self._mover = mover
        self.spec = spec
        self.block_count = block_count
        group = spec.groups[0]
        heads = heads_of(config.layers[0])
        shape = (len(group.layers), block_count, heads.kv_heads, 2, group.block_tokens, heads.head_dim)
        self._group = group
        self._bytes: PoolBytes
        if device.type == "cuda":
            self._tensor = torch.zeros(shape, dtype=dtype, device=device)
            self._bytes = DeviceBytes(self._tensor, mover, codec)
        else:
            # Private memory gets huge pages; what is shared, as is mmap's default, mostly does not.
            size = block_count * spec.block_bytes()
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._tensor = torch.frombuffer(memory, dtype=dtype).view(shape)
            ahead = PagesAhead(memory, len(group.layers), block_count, group.block_bytes)
            self._bytes = HostBytes(memoryview(memory), self._tensor.unbind(0), ahead, codec)
        self.layers = list(self._tensor.unbind(0))  # each [blocks, kv_heads, 2, block, head_dim]

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carries moves out, each seeing the result of those before it. Used by the engine's thread.

        On CUDA enqueued on its stream: after the steps that were launched, and before what `read` and `write` are
        called for afterwards.
        """
        if not moves:
            return
        in_pool = [move.source for move in moves if move.kind != "in"]
        self._bytes.begin_moves([*in_pool, *(move.target for move in moves if move.kind != "out")])
        for batch in batches(moves, max(1, STAGED // self.spec.block_bytes())):
            self._move(batch[0].kind, batch[0].group, [move.source for move in batch], [move.target for move in batch])
        self._bytes.moved([move.target for move in moves if move.kind != "out"])

    def _move(self, kind: str, group: int, sources: list[int], targets: list[int]) -> None:
        tier = self._tier
        if kind != "in":
            self._check(group, 0, sources)
        if kind != "out":
            self._check(group, 0, targets)
            assert NULL_BLOCK not in targets, "the null block is never written"
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
        """Says that the engine thread has stored this layer's KV of a step: `read` finds it from now on."""
        self._bytes.written(layer)

    def all_written(self) -> None:
        """Says the same of all layers, for a step that is launched as a whole."""
        self._bytes.all_written()

    def begin_step(self, works: Sequence[Work] | None = None, *, is_read: bool = True) -> None:
        """Says that the engine thread is about to launch a step of `works`; None: it may touch any block.

        What has landed in its blocks before is there for it; it does not wait for what lands in others. A read waits
        for the step only if it may have written the blocks; where nobody reads what it writes, that is not recorded.
        """
        self._bytes.begin_step(works, is_read=is_read)

    def enter(self, blocks: Tensor) -> None:
        """Says that these blocks, on the pool's device, are about to get their first tokens."""
        self._bytes.enter(blocks)

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        """Tells whether `read` would not wait: on a GPU a layer is said to be written before it is computed."""
        self._check(group, layer, blocks)
        return self._bytes.ready(layer, blocks)

    def read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none") -> list[memoryview]:
        """Returns the bytes of `blocks` of one layer, in order, one view per run of adjacent blocks.

        On a CPU the views are the pool itself: they change when a block is reused, so its I/O reference must be held.
        With a codec it is one view of memory of its own, as `core.kvspec.WireForm` says.
        """
        self._check(group, layer, blocks)
        return self._bytes.read(layer, blocks, codec)

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        """Lands bytes in `blocks`, in order, however they are cut. Raises `MessageError` for a wrong size."""
        self._check(group, layer, blocks)
        assert NULL_BLOCK not in blocks, "the null block is never written"
        size, block_bytes = size_of(payload), self._group.block_bytes
        if size != len(blocks) * block_bytes:
            raise MessageError(f"a payload of {size} bytes for {len(blocks)} blocks of {block_bytes} bytes")
        self._bytes.write(layer, blocks, payload)

    def convert(self, piece: Piece, payload: Payload) -> None:
        """Lands whole blocks in another form, however they are cut.

        Tokens before `piece.held`, and behind the last of `piece.blocks`, are left out. Raises `MessageError` for a
        wrong size, and for a form that there is not.
        """
        self._check(piece.group, piece.layer, piece.blocks)
        assert NULL_BLOCK not in piece.blocks, "the null block is never written"
        assert piece.first >= 0
        form, size = piece.form, size_of(payload)
        if form.dtype not in VALUE_BYTES or form.block_tokens < 1:
            raise MessageError(f"blocks of {form.block_tokens} tokens in {form.dtype!r} cannot be converted")
        block_bytes = bytes_of(form, self._group.vectors, self._tensor.shape[-1])
        if not size or size % block_bytes:
            raise MessageError(f"a payload of {size} bytes, which is not in blocks of {block_bytes} bytes")
        self._bytes.convert(piece, size // block_bytes, payload)

    def _check(self, group: int, layer: int, blocks: Sequence[int]) -> None:
        assert group == 0 and 0 <= layer < len(self.layers), f"no layer {layer} in group {group}"
        assert all(0 <= block < self.block_count for block in blocks), f"blocks beyond the pool's {self.block_count}"


def blocks_in(memory: int, spec: KVSpec) -> int:
    """Returns how many blocks `memory` bytes hold, the null block included."""
    return memory // spec.block_bytes()


def blocks_of_sequences(spec: KVSpec, sequences: int, tokens: int) -> int:
    """Returns how many blocks `sequences` of `tokens` tokens could ever use, the null block included."""
    return sequences * blocks_for(tokens, spec.groups[0].block_tokens) + 1
