"""Access to a pool's blocks in the host's memory: read without a copy, written in place."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import KVSpec, PayloadConversion
from engine.kv.codec import BlockCodec, landing_of
from engine.kv.host.pages_ahead import PagesAhead
from engine.kv.moves import runs
from engine.kv.payload import Payload, scatter, tensor_over, view_of
from engine.plan import Work
from infra.memory.unlocked_copy import joined


class HostBytes:
    """Implements `engine.kv.pool.PoolBytes`. A CPU has no queue: stores, landings and moves are done on return."""

    def __init__(
        self, tensors: Sequence[Tensor], spec: KVSpec, aheads: Sequence[PagesAhead], codec: BlockCodec
    ) -> None:
        """Takes one tensor of each group, as in `engine.kv.pool`, and the maker of pages for its memory."""
        self._groups = spec.groups
        self._layers: dict[int, Tensor] = {}
        self._memory: dict[int, memoryview] = {}  # by layer
        for group, tensor in zip(spec.groups, tensors, strict=True):
            for layer, values in zip(group.layers, tensor, strict=True):
                self._layers[layer], self._memory[layer] = values, view_of(values.view(torch.uint8))
        self._aheads = aheads
        self._codec = codec

    def begin_step(self, works: Sequence[Work] | None, *, is_read: bool) -> None: ...

    def begin_moves(self, blocks: Sequence[Sequence[int]]) -> None: ...

    def written(self, layer: int) -> None: ...

    def all_written(self) -> None: ...

    def moved(self, targets: Sequence[Sequence[int]]) -> None: ...

    def begin(self) -> None:
        for ahead in self._aheads:
            ahead.begin()

    def enter(self, group: int, blocks: Tensor) -> None:
        if blocks.numel():
            self._aheads[group].reach(int(blocks.max()))

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        return True

    def begin_read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec) -> Callable[[], list[memoryview]]:
        """Reads when the bytes are asked for."""
        return partial(self._read, group, layer, blocks, codec)

    def _read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec) -> list[memoryview]:
        if codec != "none":
            index, parts = torch.tensor(blocks, dtype=torch.int64), self._groups[group].parts
            return [view_of(self._codec.encode(self._layers[layer], index, codec, parts))]
        memory, size = self._memory[layer], self._groups[group].block_bytes
        return [memory[first * size : (last + 1) * size] for first, last in runs(blocks)]

    def landed(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        self._aheads[group].reach(max(blocks))
        return self._read(group, layer, blocks, "none")

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        scatter(self.landed(group, layer, blocks), payload)

    def convert(self, piece: PayloadConversion, count: int, payload: Payload) -> None:
        layer, frame = self._layers[piece.layer], joined(payload)
        landing = landing_of(piece, count, layer.shape[-2])
        if landing is not None:
            self._aheads[piece.group].reach(max(landing.blocks))
            self._codec.decode(tensor_over(frame).view(count, -1), landing, layer, self._groups[piece.group].parts)
