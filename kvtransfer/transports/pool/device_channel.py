"""A channel into a decode worker's pool in the memory of GPUs that this worker's GPU reaches.

This worker's GPU copies blocks. The header of a payload is sent when its copy has ended, so the bytes are there before
the header. The host polls copies, and waits for none. Grants and farewells are as for a pool on a CPU.
"""

from collections import deque
from collections.abc import Sequence
from socket import socket

import zmq.asyncio

from contracts.kv.spec import KVSpec
from contracts.messages.handoff import Layer
from contracts.messages.wire import encode
from infra.network.sockets import send_now
from kvtransfer.memory import DigestedCopy, PeerMemory
from kvtransfer.transports.channel import SentPayload
from kvtransfer.transports.pool.channel import PoolChannel

PAYLOADS_PER_DEVICE_COPY = 16
"""In units of a socket's payload: a copy of 16 MiB takes a GPU as long as the host needs to launch it."""


class DevicePoolChannel(PoolChannel):
    """A `Channel` whose payloads a GPU copies."""

    def __init__(
        self,
        memory: socket,
        spec: KVSpec,
        counts: Sequence[int],
        control: zmq.asyncio.Socket,
        frame: int,
        peer: PeerMemory,
    ) -> None:
        """Takes `memory` over, the socket by which the decode worker watches this one; `peer` is its pool."""
        super().__init__(memory, spec, counts, control, frame)
        self.frame = PAYLOADS_PER_DEVICE_COPY * frame
        self._peer: PeerMemory | None = peer
        self._is_admitted = False
        self._unannounced: deque[tuple[Layer, DigestedCopy]] = deque()

    @property
    def is_open(self) -> bool:
        return self._is_admitted

    @property
    def is_copying(self) -> bool:
        """Whether a payload is being copied, or its header was not sent yet."""
        return bool(self._unannounced)

    def copy(self, header: Layer, blocks: Sequence[int], target_blocks: Sequence[int]) -> SentPayload | None:
        """Begins to copy a payload out of `blocks`. Returns None if nothing can be taken now.

        Raises `MessageError` for blocks that the peer's pool does not have.
        """
        if self._peer is None or not self.is_open or len(target_blocks) < header.count:  # not known yet
            return None
        self._check(header, target_blocks)
        copied = self._peer.write(header.group, header.layer, header.first, blocks, target_blocks)
        self._unannounced.append((header, copied))
        return SentPayload(None, copied)

    def announce(self) -> bool:
        """Sends the headers of payloads whose copies have ended; returns whether others are left."""
        while self._unannounced and self._unannounced[0][1].done:
            if not send_now(self._control, [encode(self._unannounced[0][0])]):
                break
            self._unannounced.popleft()
        return self.is_copying

    def send(self, header: Layer, views: Sequence[memoryview], blocks: Sequence[int] = ()) -> SentPayload | None:
        assert not views, "a GPU copies payloads; only probes are sent"
        taken = self.is_open and not self.is_copying and send_now(self._control, [encode(header)])
        return SentPayload(0, None) if taken else None

    def _admitted(self, descriptors: Sequence[int]) -> bool:
        self._is_admitted = not descriptors
        return self._is_admitted

    def close(self) -> None:
        """Forgets the peer's memory, which no copy uses any more, sends the farewell, and closes the socket."""
        self._peer, self._is_admitted = None, False
        super().close()
