"""Payloads through a ring of shared memory, their headers over the control link."""

from collections.abc import Sequence

import zmq.asyncio

from core.config import Transport
from core.messages import Layer, encode
from core.sockets import send_now
from kvtransfer.channel import Sent
from kvtransfer.digest import begin_digest
from kvtransfer.ring import Ring

PIECE = 256 << 10  # bytes
FRAMES = 4
"""Times the payload of a socket: a ring moves the bytes themselves, so what a payload costs besides is what counts."""


class RingChannel:
    """See `kvtransfer.channel.Channel`. The link's window keeps what was not read from being overwritten."""

    transport: Transport = "shm"
    sealed = False

    def __init__(self, ring: Ring, control: zmq.asyncio.Socket, frame: int) -> None:
        """`frame`: bytes of a payload over a socket."""
        self.room = ring.size
        self.frame = max(frame, min(FRAMES * frame, ring.size // 4))
        self._ring = ring
        self._control = control

    def send(self, header: Layer, views: Sequence[memoryview]) -> Sent | None:
        """See `Channel`. Copies and digests in pieces that stay in the nearest caches meanwhile."""
        digest, offset = begin_digest(header.group, header.layer, header.first), header.offset
        for view in views:
            for at in range(0, len(view), PIECE):
                piece = view[at : at + PIECE]
                self._ring.write(offset, piece)
                digest.update(piece)
                offset += len(piece)
        if not send_now(self._control, [encode(header)]):
            return None
        return Sent(digest.intdigest(), None)

    def close(self) -> None:
        """See `Channel`. The control link is not ours."""
        self._ring.close()
