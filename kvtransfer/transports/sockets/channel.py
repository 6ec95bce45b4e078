"""A channel over dedicated sockets, TCP or Unix: zero-copy from the pool, or sealed."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import zmq
import zmq.asyncio

from contracts.kinds import Transport
from contracts.messages.handoff import Layer
from contracts.messages.wire import encode
from infra.network.sockets import PAYLOAD_LINGER_MS, Frame, send_now_tracked
from kvtransfer.digest import payload_digest
from kvtransfer.protocol.flow import MAX_LINK_OFFSET
from kvtransfer.transports.channel import SentPayload
from kvtransfer.transports.sockets.reorder_buffer import counted
from kvtransfer.transports.sockets.seal import TAG_BYTES, FrameSealer, seal_digest

MAX_IDLE_BUFFERS = 8  # kept when nothing is under way


class SendBuffers:
    """Reuses buffers of sealed payloads once the socket has sent them, oldest first.

    Fresh memory would cost page faults: a fifth of the time of sealing.
    """

    def __init__(self) -> None:
        self._lent: deque[tuple[zmq.MessageTracker, memoryview]] = deque()

    def take(self, size: int) -> memoryview:
        """Returns a buffer of at least `size` bytes that is not read any more."""
        while len(self._lent) > MAX_IDLE_BUFFERS and self._lent[0][0].done:
            self._lent.popleft()
        if self._lent and self._lent[0][0].done:
            buffer = self._lent.popleft()[1]
            if len(buffer) >= size:
                return buffer
        return np.empty(size, np.uint8).data

    def lend(self, buffer: memoryview, tracker: zmq.MessageTracker) -> None:
        """Keeps a buffer for reuse, which the socket reads until the tracker is done."""
        self._lent.append((tracker, buffer))


class PayloadConnection:
    """A socket, and its unsent bytes."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self.socket = socket
        self._waiting: deque[tuple[zmq.MessageTracker, int]] = deque()  # trackers and bytes, oldest first
        self._size = 0

    def waiting(self) -> int:
        """Returns the bytes that the system has not taken yet."""
        while self._waiting and self._waiting[0][0].done:
            self._size -= self._waiting.popleft()[1]
        return self._size

    def send(self, frames: list[Frame]) -> zmq.MessageTracker | None:
        tracker = send_now_tracked(self.socket, frames)
        if tracker is not None:
            size = sum(map(len, frames))
            self._waiting.append((tracker, size))
            self._size += size
        return tracker


class SocketChannel:
    """A `Channel` over sockets. Without a sealer frames are sent unchanged.

    With several connections, each payload is sent on the connection with the fewest unsent bytes, after a sequence
    number.
    """

    capacity = MAX_LINK_OFFSET

    def __init__(
        self, transport: Transport, sockets: Sequence[zmq.asyncio.Socket], sealer: FrameSealer | None, frame: int
    ) -> None:
        self.transport = transport
        self.frame = frame
        self.sealed = sealer is not None
        self.connections = [PayloadConnection(socket) for socket in sockets]
        self._sent = 0  # payloads taken by connections
        self._sealer = sealer
        self._refused: tuple[Layer, list[Frame], memoryview] | None = None  # sealed, but not taken by the socket
        self._buffers = SendBuffers()

    def send(self, header: Layer, views: Sequence[memoryview], blocks: Sequence[int] = ()) -> SentPayload | None:
        if self._sealer is not None:
            return self._send_sealed(self._sealer, header, views)
        # First, so that the bytes are in a cache when the socket reads them.
        digest = payload_digest(header.group, header.layer, header.first, views)
        tracker = self._send([encode(header), *views])
        return None if tracker is None else SentPayload(digest, tracker)

    def _send_sealed(self, sealer: FrameSealer, header: Layer, views: Sequence[memoryview]) -> SentPayload | None:
        if self._refused is None or self._refused[0] != header:
            encoded = encode(header)
            buffer = self._buffers.take(sum(map(len, views)) + TAG_BYTES)
            nonce, sealed = sealer.seal(encoded, views, buffer)
            self._refused = (header, [nonce, encoded, sealed], buffer)
        _, frames, buffer = self._refused
        tracker = self._send(frames)
        if tracker is None:
            return None
        self._refused = None
        self._buffers.lend(buffer, tracker)
        return SentPayload(seal_digest(frames[-1]), None)

    def _send(self, frames: list[Frame]) -> zmq.MessageTracker | None:
        if len(self.connections) == 1:
            return send_now_tracked(self.connections[0].socket, frames)
        frames = [counted(self._sent), *frames]
        for connection in sorted(self.connections, key=PayloadConnection.waiting):
            if (tracker := connection.send(frames)) is not None:
                self._sent += 1
                self.connections.remove(connection)  # to the end, so that equally loaded connections take turns
                self.connections.append(connection)
                return tracker
        return None

    def close(self) -> None:
        """Closes the sockets, which linger for a moment to send queued payloads."""
        for connection in self.connections:
            connection.socket.close(PAYLOAD_LINGER_MS)
