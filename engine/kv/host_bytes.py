"""Gives access to a pool's blocks in the host's memory: read without a copy, written in place."""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.config import Codec
from core.kvspec import Piece
from engine.kv.codec import BlockCodec, landing_of
from engine.kv.moves import runs
from engine.kv.pages_ahead import PagesAhead
from engine.kv.payload import Payload, joined, scatter, tensor_over, view_of
from engine.plan import Work


class HostBytes:
    """Implements `engine.kv.pool.PoolBytes`. The CPU has no queue: what was stored, landed or moved is there."""

    def __init__(self, memory: memoryview, layers: Sequence[Tensor], ahead: PagesAhead, codec: BlockCodec) -> None:
        self._memory = memory
        self._layers = layers
        self._layer_bytes = layers[0].nbytes
        self._block_bytes = layers[0][0].nbytes
        self._ahead = ahead
        self._codec = codec

    def begin_step(self, works: Sequence[Work] | None, *, is_read: bool) -> None: ...

    def begin_moves(self, blocks: Sequence[int]) -> None: ...

    def written(self, layer: int) -> None: ...

    def all_written(self) -> None: ...

    def moved(self, targets: Sequence[int]) -> None: ...

    def enter(self, blocks: Tensor) -> None:
        if blocks.numel():
            self._ahead.reach(int(blocks.max()))

    def ready(self, layer: int, blocks: Sequence[int]) -> bool:
        """Says yes: what the engine's thread has stored is there."""
        return True

    def read(self, layer: int, blocks: Sequence[int], codec: Codec) -> list[memoryview]:
        if codec != "none":
            return [view_of(self._codec.encode(self._layers[layer], torch.tensor(blocks, dtype=torch.int64), codec))]
        origin, size = layer * self._layer_bytes, self._block_bytes
        return [self._memory[origin + first * size : origin + (last + 1) * size] for first, last in runs(blocks)]

    def write(self, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        self._ahead.reach(max(blocks))
        scatter(self.read(layer, blocks, "none"), payload)

    def convert(self, piece: Piece, count: int, payload: Payload) -> None:
        layer, frame = self._layers[piece.layer], joined(payload)
        landing = landing_of(piece, count, layer.shape[-2])
        if landing is not None:
            self._ahead.reach(max(landing.blocks))
            self._codec.decode(tensor_over(frame).view(count, -1), landing, layer)
