"""Payloads through a ring of shared memory, their headers over the control link."""

from collections.abc import Sequence

import zmq.asyncio

from core.config import Transport
from core.messages import Layer, encode
from core.sockets import send_now
from kvtransfer.channel import Sent
from kvtransfer.digest import payload_digest
from kvtransfer.ring import Ring


class RingChannel:
    """See `kvtransfer.channel.Channel`. The link's window keeps what was not read from being overwritten."""

    transport: Transport = "shm"
    sealed = False

    def __init__(self, ring: Ring, control: zmq.asyncio.Socket) -> None:
        self.room = ring.size
        self._ring = ring
        self._control = control

    def send(self, header: Layer, views: Sequence[memoryview]) -> Sent | None:
        """See `Channel`."""
        self._ring.write(header.offset, views)
        if not send_now(self._control, [encode(header)]):
            return None
        return Sent(payload_digest(header.group, header.layer, header.first, views), None)

    def close(self) -> None:
        """See `Channel`. The control link is not ours."""
        self._ring.close()
