"""The decode side of a link's payloads: the Offer to the sender, and the checks of its frames."""

import secrets
from collections.abc import Sequence
from hmac import compare_digest

from contracts.errors import MessageError
from contracts.kinds import Codec, Transport
from contracts.messages.handoff import Join, Layer, Offer, decode_layer
from infra.network.sockets import MAX_PAYLOAD_BYTES
from kvtransfer.digest import payload_digest
from kvtransfer.transports.nixl.landings import NixlLanding
from kvtransfer.transports.shm.ring import Ring
from kvtransfer.transports.sockets.reorder_buffer import ReorderBuffer
from kvtransfer.transports.sockets.seal import SALT_HALF_BYTES, FrameOpener, seal_digest, session_key

Frames = Sequence[memoryview]
SEALED_FRAMES = 3  # nonce, header, and payload with its tag


class ArrivedPayload:
    """An arrived payload, its header, and its digest."""

    __slots__ = ("_digest", "header", "payload", "size")

    def __init__(self, header: Layer, payload: Sequence[memoryview] | None, digest: int | None = None) -> None:
        """`payload` is None if the sender has put it into its blocks."""
        self.header = header
        self.payload = payload
        self.size = header.size if payload is None else sum(len(part) for part in payload)  # bytes
        self._digest = digest

    @property
    def digest(self) -> int:
        """The payload's digest, computed at first use: a dropped payload needs none."""
        if self._digest is None:
            header = self.header
            assert self.payload is not None, "its blocks are read first"
            self._digest = payload_digest(header.group, header.layer, header.first, self.payload)
        return self._digest


class PayloadSession:
    """Admits, checks and opens the payloads of one link, from its Join on."""

    def __init__(
        self, link: bytes, join: Join, epoch: str, secret: bytes, sealed: bool, ring: int, window: int
    ) -> None:
        """`ring`: bytes of the ring that the sender may make, or 0. `window`: bytes of the link's window.

        Raises `MessageError` for a Join whose nonce has another size.
        """
        if len(join.nonce) != SALT_HALF_BYTES:
            raise MessageError(f"a nonce has {SALT_HALF_BYTES} bytes")
        self.link = link
        self.sender = join.sender
        self.nonce = join.nonce  # the sender's half of the salt
        self.half = secrets.token_bytes(SALT_HALF_BYTES)  # our half of the salt
        self.user = secrets.token_hex(16)  # the sender's name at payload sockets
        self.token = secrets.token_hex(16)  # its password there
        self.ring_bytes = ring if "shm" in join.transports else 0
        self.ring: Ring | None = None  # once the sender has handed it over
        self.landing: NixlLanding | None = None  # for NIXL, if both ends may use it
        key = session_key(secret, (join.nonce, self.half), (join.sender, epoch))
        self._opener = FrameOpener(key) if sealed else None
        self._order: ReorderBuffer[Frames] | None = (
            ReorderBuffer(window + MAX_PAYLOAD_BYTES) if join.connections > 1 else None
        )
        self.transport: Transport | None = None  # the sender's choice, known from its first payload
        self.codec: Codec = "none"  # of the link's last handoff

    @property
    def sealed(self) -> bool:
        """Whether payloads are sealed on the sender's transport."""
        return self.transport == "tcp" and self._opener is not None

    def offer(
        self, epoch: str, tcp: int, ipc: str, shm: str, pool: str = "", counts: Sequence[int] = (), devices: bytes = b""
    ) -> Offer:
        """Returns the Offer to the sender.

        `tcp` and `ipc` are the payload sockets' port and endpoint, `shm` the path of the socket for rings and writers,
        if any; `pool` and `counts` are the fingerprint and the blocks of a pool that may be written, `devices` the
        way to it if it is in GPUs.
        """
        return Offer(
            sender=epoch,
            receiver=self.sender,
            security="none" if self._opener is None else "sealed",
            nonce=self.half,
            user=self.user,
            token=self.token,
            tcp=tcp,
            ipc=ipc,
            shm=shm if self.ring_bytes or pool else "",
            ring=self.ring_bytes,
            pool=pool,
            counts=tuple(counts),
            devices=devices,
            nixl=None if self.landing is None else self.landing.memory,
        )

    def in_order(self, transport: Transport, frames: Frames) -> list[Frames]:
        """Returns the messages that are in order now. Raises `MessageError`."""
        if transport != "tcp" or self._order is None:
            return [frames]
        if not frames:
            raise MessageError("no count")
        count, *message = frames
        return self._order.take(bytes(count), sum(map(len, message)), message)

    def from_socket(self, transport: Transport, frames: Frames) -> ArrivedPayload:
        """Reads a message of a payload socket. Raises `MessageError` or `SealError` if it is not of this link."""
        if transport == "tcp" and self._opener is not None:
            if len(frames) != SEALED_FRAMES:
                raise MessageError("a sealed payload is a nonce, a header, and one frame")
            nonce, header, sealed = frames
            payload = self._opener.open(bytes(nonce), bytes(header), sealed)
            return self._arrived(transport, ArrivedPayload(decode_layer(header), [payload], seal_digest(sealed)))
        if not frames:
            raise MessageError("no header")
        return self._arrived(transport, ArrivedPayload(decode_layer(frames[0]), frames[1:]))

    def from_pool(self, header: Layer) -> ArrivedPayload:
        """Takes the header of a payload that is in its blocks. Raises `MessageError` for another sender's."""
        return self._arrived("pool", ArrivedPayload(header, None))

    def from_ring(self, header: Layer) -> ArrivedPayload:
        """Finds a payload in the ring by its header. Raises `MessageError` if it cannot be there."""
        if self.ring is None or not 0 <= header.size <= self.ring.size or header.offset < 0:
            raise MessageError("a payload in a ring that is not there, or too small")
        return self._arrived("shm", ArrivedPayload(header, self.ring.views(header.offset, header.size)))

    def from_nixl(self, header: Layer) -> ArrivedPayload:
        """Finds a payload in the ring that NIXL writes. Raises `MessageError` if it cannot be there."""
        ring = None if self.landing is None or not self.landing.is_admitted else self.landing.ring
        if ring is None or not 0 <= header.size <= ring.size or header.offset < 0:
            raise MessageError("a payload by NIXL in a ring that is not there, or too small")
        return self._arrived("nixl", ArrivedPayload(header, ring.views(header.offset, header.size)))

    def check_token(self, token: bytes) -> None:
        """Raises `MessageError` for a token that is not of this session's Offer."""
        if not compare_digest(token, bytes.fromhex(self.token)):
            raise MessageError("a descriptor that nobody waits for")

    def take_ring(self, descriptor: int) -> None:
        """Maps the sender's ring. Raises `MessageError` for a second ring, or memory that cannot be mapped."""
        if not self.ring_bytes or self.ring is not None:
            raise MessageError("a ring that nobody waits for")
        try:
            self.ring = Ring(descriptor, self.ring_bytes)
        except OSError as error:
            raise MessageError(f"a ring that cannot be mapped: {error}") from None

    def _arrived(self, transport: Transport, arrived: ArrivedPayload) -> ArrivedPayload:
        if arrived.header.sender != self.sender:
            raise MessageError("a payload of another sender")
        self.transport = transport
        return arrived

    def close(self) -> None:
        """Closes the ring, if any. Its memory is freed when the sender has closed it, too."""
        if self.ring is not None:
            self.ring.close()
