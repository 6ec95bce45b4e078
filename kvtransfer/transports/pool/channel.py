"""A channel into the decode worker's KV pool on the same host: payloads are copied into the granted blocks themselves.

The prefill worker makes a pair of connected sockets, and hands one of them over (`ring_socket.py`). The decode worker
sends its pool's memory through it, once (`writers.py`), and the prefill worker a farewell at its end. The end of file
tells the other side that this process has ended, or has unmapped the memory.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import zmq.asyncio

from contracts.errors import MessageError
from contracts.kinds import Transport
from contracts.kv.spec import KVSpec
from contracts.messages.handoff import Layer
from contracts.messages.wire import encode
from infra.memory.shared_mapping import map_shared
from infra.network.sockets import send_now
from kvtransfer.digest import copy_and_digest
from kvtransfer.protocol.flow import MAX_LINK_OFFSET
from kvtransfer.transports.channel import SentPayload

MAX_POOL_RANKS = 8
FAREWELL_BYTE = b"\0"
"""Sent by a writer that stops writing while its process goes on."""
PAYLOADS_PER_FRAME = 8
"""In units of a socket's payload. Sending copies the bytes itself here, so larger payloads save other costs."""
MAX_COPIED_BYTES = 8 << 20
"""Bytes of a payload beyond a socket's own: they take 0.8 ms, in which nothing else runs on the event loop."""


class PoolChannel:
    """A `Channel` into a pool of the same layout as the sender's."""

    transport: Transport = "pool"
    sealed = False
    capacity = MAX_LINK_OFFSET  # each payload has blocks of its own

    def __init__(
        self, memory: socket.socket, spec: KVSpec, counts: Sequence[int], control: zmq.asyncio.Socket, frame: int
    ) -> None:
        """Takes over `memory`, the socket through which the pool of `counts` blocks of each group arrives."""
        self.frame = max(frame, min(PAYLOADS_PER_FRAME * frame, MAX_COPIED_BYTES))
        self._socket = memory
        self._groups = spec.groups
        self._counts = counts
        self._control = control
        self._layers: dict[int, list[memoryview]] = {}  # of each rank
        self._ended: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the decode worker has sent its pool's memory."""
        return bool(self._layers)

    def watch(self, ended: Callable[[], None]) -> None:
        """Calls `ended` when the decode worker's process has ended, or has handed over something else."""
        self._ended = ended
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def send(self, header: Layer, views: Sequence[memoryview], blocks: Sequence[int] = ()) -> SentPayload | None:
        if not self.is_open or len(blocks) < header.count:  # the grant has not arrived yet
            return None
        self._check(header, blocks)
        first, *again = self._places(header, blocks)
        digest = copy_and_digest(header, views, first)
        for places in again:
            for place, source in zip(places, first, strict=True):
                place[:] = source
        return SentPayload(digest, None) if send_now(self._control, [encode(header)]) else None

    def _places(self, header: Layer, blocks: Sequence[int]) -> Iterator[list[memoryview]]:
        """Yields the memory of whole blocks, and again for other ranks that hold the same."""
        ranks, count = self._layers.get(header.layer, []), self._counts[header.group]
        if len(ranks) < 2:
            yield self._runs(header, blocks)
            return
        size = len(ranks[0]) // count
        parts = self._groups[header.group].block_bytes // size
        holders = [ranks[part * len(ranks) // parts : (part + 1) * len(ranks) // parts] for part in range(parts)]
        for copy in zip(*holders, strict=True):
            yield [memory[block * size : (block + 1) * size] for block in blocks for memory in copy]

    def _runs(self, header: Layer, blocks: Sequence[int]) -> list[memoryview]:
        """Returns the memory of blocks of a single rank, one view per run of neighbours."""
        if not blocks:
            return []
        (memory,), size = self._layers[header.layer], self._groups[header.group].block_bytes
        starts = [at for at, block in enumerate(blocks) if not at or block != blocks[at - 1] + 1]
        runs = pairwise([*starts, len(blocks)])
        return [memory[blocks[start] * size : (blocks[end - 1] + 1) * size] for start, end in runs]

    def _check(self, header: Layer, blocks: Sequence[int]) -> None:
        if blocks and not 0 < min(blocks) <= max(blocks) < self._counts[header.group]:
            raise MessageError("a grant of blocks that the pool does not have")

    def _receive(self) -> None:
        try:
            max_descriptors = MAX_POOL_RANKS * len(self._groups)
            text, descriptors, _, _ = socket.recv_fds(self._socket, 1, max_descriptors, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            text, descriptors = b"", []
        try:
            if text and not self.is_open and self._admitted(descriptors):
                return
        finally:
            for each in descriptors:
                os.close(each)
        if self._ended is not None:
            self._ended()

    def _admitted(self, descriptors: Sequence[int]) -> bool:
        """Maps the pool from its files; returns whether that has succeeded."""
        if not descriptors or len(descriptors) % len(self._groups):
            return False
        try:
            self._map(descriptors)
        except OSError:
            self._layers = {}
        return self.is_open

    def _map(self, descriptors: Sequence[int]) -> None:
        """Maps each group's memory of each rank, rank 0's first. A rank has a part of each block. Raises `OSError`."""
        ranks = len(descriptors) // len(self._groups)
        for number, descriptor in enumerate(descriptors):
            group, count = self._groups[number % len(self._groups)], self._counts[number % len(self._groups)]
            parts, rest = divmod(count * group.block_bytes * len(group.layers), os.fstat(descriptor).st_size or 1)
            if rest or not parts or ranks % parts:
                raise OSError("the sizes of the ranks' memory do not fit the pool's blocks")
            size = count * group.block_bytes // parts
            memory = map_shared(descriptor, size * len(group.layers))
            for at, layer in enumerate(group.layers):
                self._layers.setdefault(layer, []).append(memory[at * size : (at + 1) * size])

    def close(self) -> None:
        """Unmaps the memory, then sends the farewell, and closes the socket."""
        self._layers = {}
        if self._ended is not None:
            self._ended = None
            asyncio.get_running_loop().remove_reader(self._socket)
        with suppress(OSError):  # the other end may be closed
            self._socket.send(FAREWELL_BYTE)
        self._socket.close()
