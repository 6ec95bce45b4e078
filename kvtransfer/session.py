"""The decode side's end of a link's payloads: what was offered to its sender, and what makes its frames believed."""

import secrets
from collections.abc import Sequence

from core.config import Codec, Transport
from core.errors import MessageError
from core.messages import Join, Layer, Offer, decode_layer
from kvtransfer.digest import payload_digest
from kvtransfer.ring import MARK, Ring
from kvtransfer.seal import HALF, FrameOpener, seal_digest, session_key

SEALED_FRAMES = 3
"""Nonce, header, payload with its tag."""


class Arrived:
    """A header, its payload where it arrived, and what stands for it in the handoff's digest."""

    __slots__ = ("_digest", "header", "payload", "size")

    def __init__(self, header: Layer, payload: Sequence[memoryview], digest: int | None = None) -> None:
        self.header = header
        self.payload = payload
        self.size = sum(len(part) for part in payload)
        self._digest = digest

    @property
    def digest(self) -> int:
        """Computed when it is wanted: of what nobody waits for, it is not."""
        if self._digest is None:
            header = self.header
            self._digest = payload_digest(header.group, header.layer, header.first, self.payload)
        return self._digest


class Session:
    """Of one link, from its Join on."""

    def __init__(self, link: bytes, join: Join, epoch: str, secret: bytes, sealed: bool, ring: int) -> None:
        """`ring`: bytes of one to offer, 0: none. Raises `MessageError` for a Join that cannot be meant."""
        if len(join.nonce) != HALF:
            raise MessageError(f"a nonce has {HALF} bytes")
        self.link = link
        self.sender = join.sender
        self.nonce = join.nonce
        self.half = secrets.token_bytes(HALF)
        self.user = secrets.token_hex(16)
        self.token = secrets.token_hex(16)
        self.ring = _made(ring, bytes.fromhex(self.token)) if ring and "shm" in join.transports else None
        key = session_key(secret, (join.nonce, self.half), (join.sender, epoch))
        self._opener = FrameOpener(key) if sealed else None
        self.transport: Transport | None = None  # that the sender has chosen, as its first payload shows
        self.codec: Codec = "none"  # of its last handoff

    @property
    def sealed(self) -> bool:
        """Whether payloads are sealed, over the transport that was chosen."""
        return self.transport == "tcp" and self._opener is not None

    def offer(self, epoch: str, tcp: int, ipc: str) -> Offer:
        """With a port and a path of payload sockets that are there."""
        return Offer(
            sender=epoch,
            receiver=self.sender,
            security="none" if self._opener is None else "sealed",
            nonce=self.half,
            user=self.user,
            token=self.token,
            tcp=tcp,
            ipc=ipc,
            shm="" if self.ring is None else self.ring.path,
            ring=0 if self.ring is None else self.ring.size,
        )

    def from_socket(self, transport: Transport, frames: Sequence[memoryview]) -> Arrived:
        """What came over a payload socket. Raises `MessageError` or `SealError` for what is not this link's."""
        if transport == "tcp" and self._opener is not None:
            if len(frames) != SEALED_FRAMES:
                raise MessageError("a sealed payload is a nonce, a header, and one frame")
            nonce, header, sealed = frames
            payload = self._opener.open(bytes(nonce), bytes(header), sealed)
            return self._arrived(transport, Arrived(decode_layer(header), [payload], seal_digest(sealed)))
        if not frames:
            raise MessageError("no header")
        return self._arrived(transport, Arrived(decode_layer(frames[0]), frames[1:]))

    def from_ring(self, header: Layer) -> Arrived:
        """What the header says is in the ring. Raises `MessageError` if it cannot be."""
        if self.ring is None or not 0 <= header.size <= self.ring.size or header.offset < 0:
            raise MessageError("a payload in a ring that is not there, or too small")
        return self._arrived("shm", Arrived(header, self.ring.views(header.offset, header.size)))

    def _arrived(self, transport: Transport, arrived: Arrived) -> Arrived:
        if arrived.header.sender != self.sender:
            raise MessageError("a payload of another sender")
        self.transport = transport
        return arrived

    def close(self) -> None:
        """The ring's memory goes when the sender has closed it as well."""
        if self.ring is not None:
            self.ring.close()


def _made(size: int, mark: bytes) -> Ring | None:
    assert len(mark) == MARK
    try:
        return Ring.make(size, mark)
    except OSError:  # no memory, or no descriptor left: the sender goes another way
        return None
