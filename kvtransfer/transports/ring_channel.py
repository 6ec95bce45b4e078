"""A channel through shared memory: payloads in a ring, their headers over the control socket."""

from collections.abc import Sequence

import zmq.asyncio

from contracts.kinds import Transport
from contracts.messages.handoff import Layer
from contracts.messages.wire import encode
from infra.network.sockets import send_now
from kvtransfer.digest import begin_digest
from kvtransfer.transports.channel import SentPayload
from kvtransfer.transports.ring import Ring

COPY_BYTES = 256 << 10  # copied and digested at a time
FRAMES_PER_PAYLOAD = 4
"""In units of a socket's payload. Sending copies the bytes itself here, so larger payloads save other costs."""


class RingChannel:
    """A `Channel` of shared memory. The link's window keeps unread bytes from being overwritten."""

    transport: Transport = "shm"
    sealed = False

    def __init__(self, ring: Ring, control: zmq.asyncio.Socket, frame: int) -> None:
        """Takes the ring over; `frame` is the payload size for sockets, in bytes."""
        self.room = ring.size
        self.frame = max(frame, min(FRAMES_PER_PAYLOAD * frame, ring.size // 4))
        self._ring = ring
        self._control = control

    def send(self, header: Layer, views: Sequence[memoryview]) -> SentPayload | None:
        """Copies and digests a payload in cache-sized chunks, then sends its header."""
        digest, offset = begin_digest(header.group, header.layer, header.first), header.offset
        for view in views:
            for at in range(0, len(view), COPY_BYTES):
                piece = view[at : at + COPY_BYTES]
                self._ring.write(offset, piece)
                digest.update(piece)
                offset += len(piece)
        if not send_now(self._control, [encode(header)]):
            return None
        return SentPayload(digest.intdigest(), None)

    def close(self) -> None:
        self._ring.close()
