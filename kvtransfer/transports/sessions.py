"""The sessions of all links of a decode worker, bounded by number and by the links' silence."""

import logging

from contracts.errors import MessageError
from contracts.kinds import Codec
from contracts.messages.handoff import Join, Offer
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from infra.redis.records import KVLink
from kvtransfer.transports.nixl.landings import NixlLandings
from kvtransfer.transports.payload_sockets import PayloadSockets
from kvtransfer.transports.pool.writers import PoolWriters
from kvtransfer.transports.session import PayloadSession
from kvtransfer.transports.shm.ring_socket import USER_BYTES

MAX_SESSIONS = 1024
MAX_LINKS_SHOWN = 64  # links in a worker's record
MAX_NAME_CHARS = 32  # characters shown of a sender's name, which the sender chooses itself
log = logging.getLogger("baton.handoff")


class PayloadSessions:
    """Sessions by link, and by user of the payload sockets."""

    def __init__(
        self,
        config: TransferConfig,
        epoch: str,
        network: Network,
        sockets: PayloadSockets,
        writers: PoolWriters,
        landings: NixlLandings | None,
    ) -> None:
        """`landings` are for NIXL, if it may be used."""
        self._config = config
        self._epoch = epoch
        self._secret = network.secret
        self._gatekeeper = network.gatekeeper
        self._payload_sockets = sockets
        self._writers = writers
        self._landings = landings
        self._by_link: dict[bytes, tuple[PayloadSession, float]] = {}  # and when (s) the link was last heard
        self._by_user: dict[bytes, PayloadSession] = {}

    def join(self, link: bytes, join: Join, now: float) -> Offer | None:
        """Begins or renews a session; returns the Offer for its sender, or None while its ring for NIXL is made.

        The Offer is empty if the Join is for another life at this address, or if there are too many sessions. Raises
        `MessageError` for an invalid Join.
        """
        nothing = Offer(sender=self._epoch, receiver=join.sender, security="sealed", nonce=b"", user="", token="")
        if join.receiver != self._epoch:
            return nothing
        known = self._by_link.get(link)
        if known is not None and known[0].nonce != join.nonce:  # a link joins once in its life
            raise MessageError("another Join on the same link")
        if known is None:
            for other in [other for other, (each, _) in self._by_link.items() if each.sender == join.sender]:
                self.forget(other)  # its sender has lost that link
            if len(self._by_link) >= MAX_SESSIONS:
                return nothing
            session = self._begin(link, join)
        else:
            session = known[0]
        self._by_link[link] = (session, now)
        if session.landing is not None and session.landing.memory is None and not session.landing.is_over:
            return None
        sockets, writers = self._payload_sockets, self._writers
        is_open = "pool" in join.transports and writers.fingerprint
        pool = (writers.fingerprint, writers.counts, writers.devices) if is_open else ()
        return session.offer(self._epoch, sockets.port, sockets.ipc, sockets.shm, *pool)

    def _begin(self, link: bytes, join: Join) -> PayloadSession:
        sealed = "sealed" in (join.security, self._config.kv_security)
        if not sealed:
            log.warning("KV from prefill worker %s is not sealed over tcp: both say --kv-security none", join.sender)
        has_rings = self._payload_sockets.shm and "shm" in self._payload_sockets.transports
        ring = max(self._config.window, self._config.frame) if has_rings else 0
        session = PayloadSession(link, join, self._epoch, self._secret, sealed, ring, self._config.window)
        if self._landings is not None and "nixl" in join.transports:
            session.landing = self._landings.begin(session.token, max(self._config.window, self._config.frame))
        self._by_user[bytes.fromhex(session.user)] = session
        self._gatekeeper.expect(session.user, session.token)
        return session

    def of(self, link: bytes) -> PayloadSession | None:
        known = self._by_link.get(link)
        return None if known is None else known[0]

    def of_user(self, name: bytes) -> PayloadSession | None:
        """Returns the session of the user whose name begins a connection's identity, if any."""
        return self._by_user.get(name[:USER_BYTES])

    def heard(self, link: bytes, now: float) -> None:
        """Notes a message of a link, which must have a session."""
        self._by_link[link] = (self._by_link[link][0], now)

    def forget(self, link: bytes) -> None:
        """Ends a session, if any. Further payloads of its user are dropped."""
        if link in self._by_link:
            session, _ = self._by_link.pop(link)
            del self._by_user[bytes.fromhex(session.user)]
            self._gatekeeper.forget(session.user)
            session.close()
            self._writers.dismiss(link)
            if self._landings is not None and session.landing is not None:
                self._landings.end(session.landing)

    def asked(self, link: bytes, codec: Codec) -> None:
        if link in self._by_link:
            self._by_link[link][0].codec = codec

    def links(self) -> list[KVLink]:
        sessions = [session for session, _ in self._by_link.values()]
        return [
            KVLink(each.sender[:MAX_NAME_CHARS], each.transport, each.sealed, each.codec)
            for each in sessions
            if each.transport is not None
        ][:MAX_LINKS_SHOWN]

    def forget_old(self, now: float) -> None:
        kept = now - self._config.remember
        for link in [link for link, (_, heard) in self._by_link.items() if heard < kept]:
            self.forget(link)

    def close(self) -> None:
        for link in list(self._by_link):
            self.forget(link)
