"""Decides which peers may connect to a context's bound sockets: the ZAP handler (ZeroMQ RFC 27).

ZeroMQ asks it after a peer has proved a secret key (CURVE) or sent a user name and a token (PLAIN). Control sockets
admit only the deployment's own client key. Payload sockets admit only expected users, each with its own token. Without
a gatekeeper every peer is refused.

Handshakes that fail earlier (a wrong server key, no CURVE, not ZeroMQ) are refused by ZeroMQ itself; they are counted
for watched sockets. Refusals are logged at most once a minute.
"""

import asyncio
import hmac
import itertools
import logging
import time
from collections.abc import Callable

import zmq
import zmq.asyncio
from zmq.utils import z85

from infra.network.curve_keys import CurveKeys
from infra.network.socket_monitor import SocketMonitor
from infra.network.sockets import CONTROL_DOMAIN, PAYLOAD_DOMAIN
from infra.process.tasks import Tasks

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
UNEXPECTED_PEER = "it is not expected, or not any more"
REQUESTS_PER_TURN = 16  # answered before other tasks have their turn
LOG_INTERVAL_S = 60.0  # between two log lines about refused peers
REFUSAL_REASONS = ("handshake", "key", "user", "token", "mechanism")
log = logging.getLogger("baton.sockets")


class Gatekeeper:
    """Answers a context's ZAP requests until it is closed. Make it before any socket of the context binds."""

    def __init__(
        self, context: zmq.asyncio.Context, keys: CurveKeys, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = z85.decode(keys.client_public)
        self._clock = clock
        self._quiet_until = clock()
        self._tokens: dict[bytes, bytes] = {}  # tokens by user
        self._watched: list[SocketMonitor] = []
        self.refused = dict.fromkeys(REFUSAL_REASONS, 0)  # refused connections by reason
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)
        self.tasks = Tasks("the gatekeeper")
        """Run until `close`. The context's owner waits for their failure beside its own tasks."""
        self.tasks.start(self._serve())

    def expect(self, user: str, token: str) -> None:
        """Admits a user to payload sockets, with this token, until `forget`. Call it before the user connects."""
        self._tokens[user.encode()] = token.encode()

    def forget(self, user: str) -> None:
        """Admits the user no more. Open connections stay."""
        self._tokens.pop(user.encode(), None)

    def watch(self, socket: zmq.asyncio.Socket) -> None:
        """Counts the peers of a bound socket whose handshakes fail before ZeroMQ asks."""

        def failed(event: int) -> None:
            self._refuse("handshake", str(socket.getsockopt_string(zmq.LAST_ENDPOINT)))

        self._watched.append(SocketMonitor(socket, zmq.Event.HANDSHAKE_FAILED_PROTOCOL, failed, self.tasks))

    async def close(self) -> None:
        for handshakes in self._watched:
            await handshakes.close()
        await self.tasks.close()
        self._socket.close(0)

    async def _serve(self) -> None:
        for number in itertools.count(1):
            if number % REQUESTS_PER_TURN == 0:
                await asyncio.sleep(0)  # while requests are queued, answering them never suspends
            _, request, domain, address, _, mechanism, *credentials = await self._socket.recv_multipart()
            reason = self._objection(domain.decode(), mechanism, credentials)
            if reason:
                self._refuse(reason, address.decode())
                answer = [b"400", b"refused", b"", b""]
            else:
                answer = [b"200", b"OK", credentials[0] if mechanism == b"PLAIN" else b"", b""]
            await self._socket.send_multipart([ZAP_VERSION, request, *answer])

    def _objection(self, domain: str, mechanism: bytes, credentials: list[bytes]) -> str:
        match domain, mechanism, credentials:
            case _, b"CURVE", [key] if domain == CONTROL_DOMAIN:
                return "" if hmac.compare_digest(key, self._client) else "key"
            case _, b"PLAIN", [user, token] if domain == PAYLOAD_DOMAIN:
                expected = self._tokens.get(user)
                if expected is None:
                    return "user"
                return "" if hmac.compare_digest(token, expected) else "token"
        return "mechanism"

    def _refuse(self, reason: str, address: str) -> None:
        self.refused[reason] += 1
        now = self._clock()
        if now < self._quiet_until:
            return
        self._quiet_until = now + LOG_INTERVAL_S
        log.warning(
            "refused a peer at %s (%s): %s; %d refused so far",
            address or "this host",
            reason,
            UNEXPECTED_PEER
            if reason in ("user", "token")
            else "it does not have this deployment's secret (--secret-file)",
            sum(self.refused.values()),
        )
