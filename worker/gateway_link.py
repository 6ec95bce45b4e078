"""The control link of a worker: one ROUTER that gateways connect to, and the ledger of what each is owed."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

import zmq.asyncio

from core.errors import MessageError
from core.ids import SequenceKey
from core.messages import (
    HANDED_OFF,
    LANDING,
    VERSION,
    Alive,
    Ask,
    Cancel,
    Drain,
    Ended,
    Failed,
    FromWorker,
    Hello,
    Ping,
    Pong,
    Started,
    Tokens,
    ToWorker,
    Welcome,
    decode_to_worker,
    encode,
)
from core.sockets import try_send
from core.store import ServerClock
from core.strikes import Strikes
from worker.events import Kill, Stop
from worker.ledger import Failure, Ledger
from worker.vitals import Vitals

RETRY = 0.01  # s after which a gateway whose queue was full is tried again
BATCH = 16  # messages handled before other tasks have their turn
PEERS = 1024  # gateways that may be connected
log = logging.getLogger("baton.worker")


class Peer:
    """A gateway's connection."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.heard = time.monotonic()


class GatewayLink:
    """Reads what gateways say, and sends them what the ledger owes them."""

    def __init__(
        self,
        socket: zmq.asyncio.Socket,
        epoch: str,
        ledger: Ledger,
        vitals: Vitals,
        clock: ServerClock,
        silence: float,
        tell_engine: Callable[[Kill | Stop], None],
        on_cancel: Callable[[str, int, int], None],
        lands: Callable[[str, int, int], bool],
        strikes: Strikes[bytes],
    ) -> None:
        self._socket = socket
        self._epoch = epoch
        self._ledger = ledger
        self._vitals = vitals
        self._clock = clock
        self._silence = silence
        self._tell_engine = tell_engine
        self._on_cancel = on_cancel
        self._lands = lands
        self._peers: dict[str, Peer] = {}
        self._strangers: dict[str, float] = {}  # gateways that sent jobs but no Hello, and since when
        self._retries: set[str] = set()
        self._strikes = strikes
        self.dropped = 0

    async def run(self) -> None:
        """Reads for ever. What is malformed or meant for another life is dropped and counted."""
        for number in itertools.count(1):
            if number % BATCH == 0:
                await asyncio.sleep(0)  # while messages lie ready, reading and answering them never suspends
            identity, *frames = await self._socket.recv_multipart()
            if not self._strikes.listens(identity, time.monotonic()):
                self.dropped += 1
                continue
            try:
                message = decode_to_worker(frames[0] if len(frames) == 1 else b"")
            except MessageError:
                self._strike(identity)
                continue
            if message.receiver != self._epoch:
                self.dropped += 1
                continue
            await self._handle(identity, message)

    def _strike(self, identity: bytes) -> None:
        """A frame that is no message, or of another version."""
        self.dropped += 1
        if self._strikes.strike(identity, time.monotonic()):
            log.warning("a peer is cut off: it sent more than %d bad messages in a second", self._strikes.limit)

    async def _handle(self, identity: bytes, message: ToWorker) -> None:
        gateway = message.sender
        if isinstance(message, Hello):
            await self._welcome(identity, message)
            return
        peer = self._peers.get(gateway)
        if peer is None or peer.identity != identity:
            self.dropped += 1  # no work before Hello
            return
        peer.heard = time.monotonic()
        match message:
            case Ping(number=number):
                steps, due = self._vitals.load.steps, self._vitals.step_due_ms()
                pong = Pong(sender=self._epoch, receiver=gateway, number=number, steps=steps, step_due_ms=due)
                await self.say(gateway, pong)
            case Ask():
                await self._answer(gateway, message)
            case Cancel(request=request, sample=sample, attempt=attempt):
                await self._cancel(gateway, SequenceKey(request, sample), attempt)
            case Ended(request=request, sample=sample, attempt=attempt):
                entry = self._ledger.acknowledged(SequenceKey(request, sample), attempt)
                if entry is not None and not entry.ended() and entry.state != HANDED_OFF:
                    self._tell_engine(Kill(entry.key, entry.attempt, "ended"))
            case Drain():
                self._tell_engine(Stop())

    async def _welcome(self, identity: bytes, hello: Hello) -> None:
        if hello.version != VERSION:  # the Welcome tells it our version; nothing else will be heard
            log.warning("gateway %s speaks version %d, this worker %d", hello.sender, hello.version, VERSION)
            self._strike(identity)
            await try_send(self._socket, [identity, encode(Welcome(sender=self._epoch, receiver=hello.sender))])
            return
        if hello.sender not in self._peers and len(self._peers) >= PEERS:
            self.dropped += 1
            return
        self._peers[hello.sender] = Peer(identity)
        await self.say(hello.sender, Welcome(sender=self._epoch, receiver=hello.sender))
        await self.flush(hello.sender)

    async def _answer(self, gateway: str, ask: Ask) -> None:
        key = SequenceKey(ask.request, ask.sample)
        entry = self._ledger.ask(key, ask.attempt, ask.next_index)
        if entry is not None and entry.owed():
            await self.flush(gateway)
            return
        state = entry.state if entry is not None else LANDING if self._lands(*key, ask.attempt) else ""
        if not state:
            await self.say(gateway, self._failed(gateway, key, ask.attempt, Failure("unknown", retryable=True)))
            return
        alive = Alive(
            sender=self._epoch,
            receiver=gateway,
            request=key.request,
            sample=key.sample,
            attempt=ask.attempt,
            state=state,
        )
        await self.say(gateway, alive)

    async def _cancel(self, gateway: str, key: SequenceKey, attempt: int) -> None:
        news = not self._ledger.cancelled(key, attempt)
        living = self._ledger.cancel(key, attempt, self._clock.now())
        if news and (living or self._lands(*key, attempt)):  # what lands here has no entry before it has landed
            self._tell_engine(Kill(key, attempt, "cancelled"))
        self._on_cancel(*key, attempt)
        failure = Failure("cancelled" if living else "unknown")
        await self.say(gateway, self._failed(gateway, key, attempt, failure))

    async def started(self, gateway: str, request: str, attempt: int, samples: tuple[int, ...]) -> None:
        """Tells a gateway that its job was taken. If this is lost, the gateway adds the job again."""
        taken = Started(sender=self._epoch, receiver=gateway, request=request, attempt=attempt, samples=samples)
        await self.say(gateway, taken)

    async def say(self, gateway: str, message: FromWorker) -> bool:
        """Sends to one gateway; False if it is not connected or its queue is full."""
        peer = self._peers.get(gateway)
        return peer is not None and await try_send(self._socket, [peer.identity, encode(message)])

    async def flush(self, gateway: str) -> None:
        """Sends what this gateway is owed: all tokens in one message, each failure in its own."""
        entries = self._ledger.owing(gateway)
        failures = [entry for entry in entries if entry.failure is not None]
        tokens = [entry for entry in entries if entry.sent < len(entry.tokens) or entry.finish is not None]
        full = False
        if tokens:
            emitted = [entry.pending() for entry in tokens]
            if await self.say(gateway, Tokens(sender=self._epoch, receiver=gateway, emitted=emitted)):
                self._ledger.sent([entry for entry in tokens if entry.failure is None])
            else:
                full = True
        for entry in failures:
            assert entry.failure is not None
            if full or not await self.say(gateway, self._failed(gateway, entry.key, entry.attempt, entry.failure)):
                full = True
                break
            self._ledger.sent([entry])
        if full and gateway in self._peers and gateway not in self._retries:
            self._retries.add(gateway)
            asyncio.get_running_loop().call_later(RETRY, self._retry, gateway)

    def _retry(self, gateway: str) -> None:
        self._retries.discard(gateway)
        task = asyncio.ensure_future(self.flush(gateway))
        task.add_done_callback(lambda done: done.cancelled() or done.result())

    def watch(self) -> None:
        """Frees everything of gateways that are silent for too long. Called once a heartbeat."""
        now = time.monotonic()
        heard = {gateway: peer.heard for gateway, peer in self._peers.items()}
        strangers = self._ledger.known_gateways() - heard.keys()
        self._strangers = {gateway: self._strangers.get(gateway, now) for gateway in strangers}
        heard |= self._strangers
        for gateway in [gateway for gateway, at in heard.items() if at < now - self._silence]:
            self._peers.pop(gateway, None)
            entries = self._ledger.of_gateway(gateway)
            if entries:
                log.warning("gateway %s is silent; its %d sequences end", gateway, len(entries))
            for entry in entries:
                if not entry.ended():
                    self._tell_engine(Kill(entry.key, entry.attempt, "gateway silent"))
                    self._on_cancel(*entry.key, entry.attempt)
            self._ledger.forget(entries)

    def _failed(self, gateway: str, key: SequenceKey, attempt: int, failure: Failure) -> Failed:
        return Failed(
            sender=self._epoch,
            receiver=gateway,
            request=key.request,
            sample=key.sample,
            attempt=attempt,
            reason=failure.reason,
            message=failure.message,
            retryable=failure.retryable,
        )
