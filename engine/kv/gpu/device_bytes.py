"""Access to a pool's blocks in a GPU's memory, through pinned host memory and concurrently with steps."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import KVSpec, PayloadConversion, blocks_for
from engine.device import to_device
from engine.kv.codec import BlockCodec, landing_of
from engine.kv.gpu.block_events import BlockEvents
from engine.kv.gpu.device_digest import DeviceDigest
from engine.kv.gpu.landing_order import LandingOrder
from engine.kv.gpu.write_order import WriteOrder
from engine.kv.mover import WORD_DTYPE, BlockMover, WordSpan, words_of
from engine.kv.payload import Payload, scatter, size_of, view_of
from engine.plan import Work


class DeviceBytes:
    """Implements `engine.kv.pool.PoolBytes`.

    Transfers run on their own stream, ordered against the steps by events. A read waits only for the store of its layer
    in the step, or the moves, that filled its blocks. A step or a move waits for landings in the blocks that it touches
    (`landing_order.py`). A landing waits for earlier moves of its target blocks, which may still be read.

    The pools of a worker's other ranks share the stream, and the order of events, of rank 0's own pool. Each all-reduce
    and each barrier orders the streams of all ranks: so whatever waits for an event of rank 0's steps and moves waits
    for all ranks, and all ranks wait for a landing that rank 0's steps and moves wait for.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        spec: KVSpec,
        mover: BlockMover,
        codec: BlockCodec,
        own: "DeviceBytes | None" = None,
    ) -> None:
        """`own`: rank 0's bytes, if `tensors` are of another rank's pool, which rank 0 has opened."""
        self._layers: dict[int, Tensor] = {}
        for group, tensor in zip(spec.groups, tensors, strict=True):
            self._layers |= zip(group.layers, tensor, strict=True)
        self._parts = [group.parts for group in spec.groups]
        self._mover = mover
        self._codec = codec
        self._block_tokens = spec.groups[0].block_tokens
        self.device = tensors[0].device
        cuda: Any = torch.cuda
        self._stream: torch.cuda.Stream
        self._stream = cuda.Stream(self.device, priority=-1) if own is None else own._stream  # before large grids
        for tensor in tensors:
            tensor.record_stream(self._stream)  # else its memory might be reused during a last transfer
        self._order: WriteOrder[torch.cuda.Event] = WriteOrder(len(self._layers), [len(each[0]) for each in tensors])
        self._landings: LandingOrder[torch.cuda.Event] = LandingOrder(self._block_tokens, len(tensors))
        self._moves: BlockEvents[torch.cuda.Event] = BlockEvents(len(tensors))
        self._moving: Sequence[Sequence[int]] = ()  # sources and targets of the moves under way, of each group
        if own is not None:
            self._order, self._landings, self._moves = own._order, own._landings, own._moves
        zeroed = self._zeroed = self._engine().record_event()
        self._stream.wait_event(zeroed)
        self._order.begin(None)
        self._order.recorded(range(len(self._layers)), zeroed)
        self._is_read = True  # whether the newest step's KV will be read

    def begin_step(self, works: Sequence[Work] | None, *, is_read: bool) -> None:
        self._wait(self._landings.of_any() if works is None else self._landings.of_step(works))
        self._is_read = is_read
        if works is None or not is_read:
            self._order.begin(None)
        else:
            groups = range(len(works[0].blocks))
            self._order.begin([[block for work in works for block in self._written_by(work, g)] for g in groups])

    def begin_moves(self, blocks: Sequence[Sequence[int]]) -> None:
        self._moving = blocks
        self._wait(self._landings.of_blocks(blocks))

    def written(self, layer: int) -> None:
        if self._is_read:
            self._order.recorded((layer,), self._engine().record_event())

    def all_written(self) -> None:
        if self._is_read:
            self._order.recorded(range(len(self._layers)), self._engine().record_event())

    def moved(self, targets: Sequence[Sequence[int]]) -> None:
        moved = self._engine().record_event()
        for group, blocks in enumerate(self._moving):
            self._moves.record(group, blocks, moved)
        self._order.begin(targets)
        self._order.recorded(range(len(self._layers)), moved)

    def begin(self) -> None:
        """Does nothing: device memory is allocated from the beginning."""

    def enter(self, group: int, blocks: Tensor) -> None:
        """Does nothing: device memory is allocated from the beginning."""

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        written = self._order.before(group, layer, blocks)
        return written is None or bool(written.query())

    def begin_read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec) -> Callable[[], list[memoryview]]:
        """Reads into a new buffer, which lives as long as its view, since the sender may keep it in flight."""
        written = self._order.before(group, layer, blocks)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            if written is not None:
                self._stream.wait_event(written)
            if codec == "none":
                found = self._mover.gather(self._layers[layer][None], self._index(blocks))
            else:
                found = self._codec.encode(self._layers[layer], self._index(blocks), codec, self._parts[group])
            staging = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            staging.copy_(found, non_blocking=True)
            copied = self._stream.record_event()

        def views() -> list[memoryview]:
            copied.synchronize()
            return [view_of(staging)]

        return views

    def landed(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        raise AssertionError("the host does not read what lands in a GPU's memory")

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Payload) -> None:
        pool = self._layers[layer][None]
        staging = torch.empty((len(blocks), 1, words_of(pool).shape[2]), dtype=WORD_DTYPE, pin_memory=True)
        scatter([view_of(staging)], payload)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._wait_for_moves(group, blocks)
            words = staging.to(self.device, non_blocking=True)
            self._mover.scatter(words, pool, self._index(blocks))
            self._landings.landed(group, blocks, self._stream.record_event())  # waited for by steps, not by the host

    def convert(self, piece: PayloadConversion, count: int, payload: Payload) -> None:
        landing = landing_of(piece, count, self._block_tokens)
        if landing is None:
            return
        staging = torch.empty(size_of(payload), dtype=torch.uint8, pin_memory=True)
        scatter([view_of(staging)], payload)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._wait_for_moves(piece.group, landing.blocks)
            found = staging.to(self.device, non_blocking=True).view(count, -1)
            self._codec.decode(found, landing, self._layers[piece.layer], self._parts[piece.group])
            self._landings.landed(piece.group, landing.blocks, self._stream.record_event())

    def events_before_grant(self, blocks: Sequence[Sequence[int]]) -> list[torch.cuda.Event]:
        """Returns the events after which a peer may write these blocks of each group: the first zeros, and their moves.

        The moves' events are forgotten.
        """
        moved = self._moves.take(blocks)
        return [self._zeroed, *([] if moved is None else [moved])]

    def digest(self, layer: int, index: Tensor, span: WordSpan) -> Tensor:
        return self._mover.digest(self.words(layer), index, span)

    def copy_and_digest(self, layer: int, index: Tensor, target: Tensor, targets: Tensor, span: WordSpan) -> Tensor:
        return self._mover.copy_and_digest(self.words(layer), index, target, targets, span)

    def digested_read(
        self,
        group: int,
        layer: int,
        blocks: Sequence[int],
        target_blocks: Sequence[int],
        launch: Callable[[Tensor, Tensor], list[Tensor]],
    ) -> DeviceDigest:
        """Lets `launch` enqueue reads of `blocks`, given both lists on the device; returns the sum of its digests."""
        written = self._order.before(group, layer, blocks)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            if written is not None:
                self._stream.wait_event(written)
            return self._summed(launch(*self._index([*blocks, *target_blocks]).chunk(2)))

    def digested_landing(
        self, group: int, blocks: Sequence[int], launch: Callable[[Tensor], list[Tensor]]
    ) -> DeviceDigest:
        """Digests blocks that another process has filled, by the kernels of `launch`.

        Later steps and block moves that read these blocks wait for the digest.
        """
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            digest = self._summed(launch(self._index(blocks)))
            self._landings.landed(group, blocks, digest.known)
            return digest

    def _summed(self, digests: list[Tensor]) -> DeviceDigest:
        number = torch.empty((), dtype=WORD_DTYPE, pin_memory=True)
        number.copy_(torch.stack(digests).sum(), non_blocking=True)
        return DeviceDigest(number, self._stream.record_event())

    def words(self, layer: int) -> Tensor:
        """Returns a layer's `[blocks, words]`."""
        return words_of(self._layers[layer][None])[0]

    def _wait(self, landed: torch.cuda.Event | None) -> None:
        if landed is not None:
            self._engine().wait_event(landed)

    def _wait_for_moves(self, group: int, blocks: Sequence[int]) -> None:
        moved = self._moves.take([blocks if number == group else () for number in range(len(self._parts))])
        if moved is not None:
            self._stream.wait_event(moved)

    def _written_by(self, work: Work, group: int) -> list[int]:
        end = blocks_for(work.start + len(work.token_ids), self._block_tokens)
        return work.blocks[group][work.start // self._block_tokens : end]

    def _engine(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return to_device(np.array(blocks, dtype=np.int64), self.device)
