"""A channel through shared memory: payloads in a ring, their headers over the control socket."""

from collections.abc import Sequence

import zmq.asyncio

from contracts.kinds import Transport
from contracts.messages.handoff import Layer
from contracts.messages.wire import encode
from infra.network.sockets import send_now
from kvtransfer.digest import copy_and_digest
from kvtransfer.transports.channel import SentPayload
from kvtransfer.transports.shm.ring import Ring

FRAMES_PER_PAYLOAD = 4
"""In units of a socket's payload. Sending copies the bytes itself here, so larger payloads save other costs."""


class RingChannel:
    """A `Channel` of shared memory. The link's window keeps unread bytes from being overwritten."""

    transport: Transport = "shm"
    sealed = False

    def __init__(self, ring: Ring, control: zmq.asyncio.Socket, frame: int) -> None:
        """Takes the ring over; `frame` is the payload size for sockets, in bytes."""
        self.capacity = ring.size
        self.frame = max(frame, min(FRAMES_PER_PAYLOAD * frame, ring.size // 4))
        self._ring = ring
        self._control = control

    def send(self, header: Layer, views: Sequence[memoryview], blocks: Sequence[int] = ()) -> SentPayload | None:
        digest = copy_and_digest(header, views, self._ring.views(header.offset, header.size))
        return SentPayload(digest, None) if send_now(self._control, [encode(header)]) else None

    def close(self) -> None:
        self._ring.close()
