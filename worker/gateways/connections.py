"""A worker's connections to gateways: one ROUTER for all of them, and the ledger of unsent tokens."""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq.asyncio

from contracts.errors import MessageError
from contracts.ids import NO_TICKET, AttemptKey
from contracts.messages.gateway import (
    NOT_HEARD,
    STATE_HANDED_OFF,
    STATE_HANDING_OFF,
    STATE_LANDING,
    Alive,
    Ask,
    Cancel,
    Drain,
    Ended,
    Failed,
    FromWorker,
    Hello,
    Kept,
    Piece,
    Ping,
    Pong,
    Started,
    Tokens,
    ToWorker,
    Wanted,
    Welcome,
    decode_to_worker,
)
from contracts.messages.job import AnyJob
from contracts.messages.wire import VERSION, encode
from infra.network.malformed_frames import MalformedFrames
from infra.network.sockets import try_send
from kvtransfer.events import CancelAttempt
from worker.events import AttemptFailure, Begin, Emit, Fail, KeysChanged, Kill, Phase, ToGateway
from worker.gateways.key_log import KeyLog
from worker.gateways.ledger import AttemptArrival, Ledger
from worker.life import Life
from worker.transfer import Transfer

RETRY_S = 0.01  # until a gateway with a full queue is tried again
MESSAGES_PER_TURN = 16  # handled or sent before other tasks have their turn
MAX_MESSAGE_TOKENS = 256  # of one message, so that a gateway handles it quickly
MAX_WAITING_MESSAGES = 1024  # messages without tokens that wait for one gateway's queue; gateways repeat lost messages
KEY_NEWS_INTERVAL_S = 0.05  # between two messages about keys
MAX_GATEWAYS = 1024  # connected at once
log = logging.getLogger("baton.worker")


class GatewayPeer:
    """One gateway's connection: its ROUTER identity, and when it was last heard."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.heard = time.monotonic()  # s, time of the last message
        self.waiting: deque[bytes] = deque()  # messages that did not fit into its queue yet


class GatewayConnections:
    """Handles gateways' messages, and sends them the ledger's unsent tokens and failures.

    Methods that post events to the engine thread raise `MailboxFull` if it has stopped reading.
    """

    def __init__(self, life: Life, socket: zmq.asyncio.Socket, transfer: Transfer) -> None:
        self._life = life
        self._socket = socket
        self._transfer = transfer
        self.ledger = Ledger()
        self._keys = KeyLog()  # keys of cached blocks
        self._peers: dict[str, GatewayPeer] = {}  # by the gateway's epoch
        self._strangers: dict[str, float] = {}  # gateways that sent jobs but no Hello, since when (s)
        self._retries: set[str] = set()  # gateways with a running retry timer
        self._owed: set[str] = set()  # gateways that `send` has to serve
        self._owing = asyncio.Event()
        self._malformed: MalformedFrames[bytes] = MalformedFrames(
            life.config.transfer.malformed_rate, life.config.transfer.cut_off
        )
        self.dropped = 0  # messages dropped since the start
        self.taken = NO_TICKET  # all jobs up to this ticket have left the stream: answered by Started, or lost

    # from gateways --------------------------------------------------------------------------------------------------

    async def run(self, take_piece: Callable[[Piece], None]) -> None:
        """Reads messages for ever; `take_piece` gets the pieces of prompts. Drops and counts foreign messages."""
        for number in itertools.count(1):
            if number % MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)  # while messages are queued, reading and answering them never suspends
            identity, *frames = await self._socket.recv_multipart()
            if not self._malformed.listens(identity, time.monotonic()):
                self.dropped += 1
                continue
            try:
                message = decode_to_worker(frames[0] if len(frames) == 1 else b"")
            except MessageError:
                self._count_malformed(identity)
                continue
            if message.receiver != self._life.epoch:
                self.dropped += 1
                continue
            await self._receive(identity, message, take_piece)

    def _count_malformed(self, identity: bytes) -> None:
        """Counts a malformed frame, or a message of another version; too many of them cut the peer off."""
        self.dropped += 1
        if self._malformed.count(identity, time.monotonic()):
            log.warning("a peer is cut off: it sent more than %d bad messages in a second", self._malformed.limit)

    async def _receive(self, identity: bytes, message: ToWorker, take_piece: Callable[[Piece], None]) -> None:
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
            case Ping(number=number, keys=keys):
                self._keys.heard(gateway, keys, peer.heard)
                status = self._life.status
                pong = Pong(
                    **self._ends(gateway),
                    number=number,
                    steps=status.load.steps,
                    step_due_ms=status.round_due_ms(),
                    taken=self.taken,
                    backlog=status.backlog(),
                )
                await self._say(gateway, pong)
            case Ask(asked=asked):
                for number, one in enumerate(asked, 1):
                    await self._answer(gateway, one.key, one.next_index)
                    if number % MESSAGES_PER_TURN == 0:
                        await asyncio.sleep(0)
            case Cancel(key=key):
                await self._cancel(gateway, key)
            case Ended(key=key):
                entry = self.ledger.acknowledged(key)
                if entry is not None and not entry.ended() and entry.state not in (STATE_HANDING_OFF, STATE_HANDED_OFF):
                    self._life.inbox.post(Kill(entry.key, "ended"))
            case Piece():
                take_piece(message)
            case Drain():
                self._life.inbox.stop()

    async def _welcome(self, identity: bytes, hello: Hello) -> None:
        welcome = Welcome(**self._ends(hello.sender))
        if hello.version != VERSION:  # the Welcome has our version; further messages are dropped
            log.warning("gateway %s speaks version %d, this worker %d", hello.sender, hello.version, VERSION)
            self._count_malformed(identity)
            await try_send(self._socket, [identity, encode(welcome)])
            return
        if hello.sender not in self._peers and len(self._peers) >= MAX_GATEWAYS:
            self.dropped += 1
            return
        peer = self._peers.get(hello.sender)
        if peer is None or peer.identity != identity:
            self._peers[hello.sender] = peer = GatewayPeer(identity)
        peer.heard = time.monotonic()
        self._keys.heard(hello.sender, NOT_HEARD, peer.heard)
        await self._say(hello.sender, welcome)
        await self._flush(hello.sender)

    async def _answer(self, gateway: str, key: AttemptKey, next_index: int) -> None:
        """Answers an Ask, except about living sequences while the engine is overdue."""
        entry = self.ledger.ask(key, next_index)
        if entry is not None and entry.owed():
            await self._flush(gateway)
            return
        if entry is None and not self._transfer.knows(key):
            await self._say(gateway, self._failed(gateway, key, AttemptFailure("unknown", retryable=True)))
            return
        state = entry.state if entry is not None else STATE_LANDING
        if state == STATE_HANDED_OFF or self._life.status.round_due_ms() >= 0:
            await self._say(gateway, Alive(**self._ends(gateway), key=key, state=state))

    async def _cancel(self, gateway: str, key: AttemptKey) -> None:
        news = not self.ledger.cancelled(key)
        living = self.ledger.cancel(key, self._life.clock.now())
        if news and (living or self._transfer.knows(key)):  # a landing attempt has no entry yet
            self._life.inbox.post(Kill(key, "cancelled"))
        self._transfer.handle(CancelAttempt(key))
        await self._say(gateway, self._failed(gateway, key, AttemptFailure("cancelled" if living else "unknown")))

    # from this worker -----------------------------------------------------------------------------------------------

    async def started(self, job: AnyJob) -> None:
        """Notifies a gateway that its job was taken. If this is lost, the gateway adds the job again."""
        ends = self._ends(job.sender)
        await self._say(job.sender, Started(**ends, request=job.request, attempt=job.attempt, samples=job.samples))

    async def ask_for_ids(self, job: AnyJob, first: int) -> None:
        """Requests the ids of a job's prompt from its gateway, from index `first` on."""
        name: dict[str, Any] = {"request": job.request, "attempt": job.attempt, "samples": job.samples}
        await self._say(job.sender, Wanted(**self._ends(job.sender), **name, first=first))

    def handle(self, event: ToGateway) -> None:
        """Applies an event of the engine thread to the ledger, and schedules sending."""
        match event:
            case Emit(emitted=emitted):
                self._owe({self.ledger.emit(each) for each in emitted})
            case Begin(gateway=gateway, deadline=deadline, emitted=emitted):
                verdict, superseded = self.ledger.begin(emitted.key, gateway, emitted.index, deadline)
                if superseded is not None:
                    self._life.inbox.post(Kill(superseded, "superseded"))
                if verdict is AttemptArrival.DEAD:
                    self._life.inbox.post(Kill(emitted.key, "cancelled"))
                self._owe({self.ledger.emit(emitted)})
            case Fail(key=key, failure=failure):
                self._owe({self.ledger.fail(key, failure)})
            case Phase(key=key, state=state):
                self.ledger.note(key, state)
            case KeysChanged(kept=kept, lost=lost):
                self._keys.change(kept, lost)

    def _owe(self, gateways: set[str | None]) -> None:
        self._owed |= {gateway for gateway in gateways if gateway is not None}
        if self._owed:
            self._owing.set()

    # to gateways ----------------------------------------------------------------------------------------------------

    async def send(self) -> None:
        while True:
            await self._owing.wait()
            self._owing.clear()
            gateways, self._owed = self._owed, set()
            for gateway in sorted(gateways):
                await self._flush(gateway)

    async def send_all(self, seconds: float) -> None:
        """Sends until nothing is pending, at most for `seconds`."""
        until = time.monotonic() + seconds
        while (owed := list(self.ledger.gateways())) and time.monotonic() < until:
            for gateway in owed:
                await self._flush(gateway)
            await asyncio.sleep(0.01)

    async def tell_keys(self) -> None:
        """Sends gateways changed keys of cached blocks, in batches, for ever."""
        while True:
            await asyncio.sleep(KEY_NEWS_INTERVAL_S)
            for gateway, peer in list(self._peers.items()):
                await self._tell_keys_to(gateway, peer)

    async def _tell_keys_to(self, gateway: str, peer: GatewayPeer) -> None:
        """Sends a gateway news about keys while its queue has room; tokens have precedence."""
        while not peer.waiting and (news := self._keys.owed(gateway)) is not None:
            if not await try_send(self._socket, [peer.identity, encode(Kept(**self._ends(gateway), news=news))]):
                return
            self._keys.sent(gateway, news, time.monotonic())
            await asyncio.sleep(0)  # while its queue has room, sending never suspends

    async def _say(self, gateway: str, message: FromWorker) -> None:
        """Sends a message to a connected gateway, or queues it if the gateway's queue is full."""
        peer = self._peers.get(gateway)
        if peer is None:
            return
        data = encode(message)
        if peer.waiting or not await try_send(self._socket, [peer.identity, data]):
            if len(peer.waiting) < MAX_WAITING_MESSAGES:
                peer.waiting.append(data)
            self._retry_soon(gateway)

    async def _flush(self, gateway: str) -> None:
        peer = self._peers.get(gateway)
        if peer is None:
            return
        for number in itertools.count(1):
            if number % MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)  # while its queue has room, sending never suspends
            taken = await self._send_next(gateway, peer)
            if taken is None:
                return
            if not taken:
                self._retry_soon(gateway)
                return

    async def _send_next(self, gateway: str, peer: GatewayPeer) -> bool | None:
        """Sends a gateway's next message; returns whether its queue took it, None without a message."""
        if peer.waiting:
            taken = await try_send(self._socket, [peer.identity, peer.waiting[0]])
            if taken:
                peer.waiting.popleft()
        elif emitted := self.ledger.owed(gateway, MAX_MESSAGE_TOKENS):
            tokens = Tokens(**self._ends(gateway), emitted=emitted)
            taken = await try_send(self._socket, [peer.identity, encode(tokens)])
            if taken:
                self.ledger.sent(emitted)
        elif failed := self.ledger.failed(gateway):
            key, failure = failed
            taken = await try_send(self._socket, [peer.identity, encode(self._failed(gateway, key, failure))])
            if taken:
                self.ledger.failure_sent(key)
        else:
            return None
        return taken

    def _retry_soon(self, gateway: str) -> None:
        if gateway not in self._retries:
            self._retries.add(gateway)
            asyncio.get_running_loop().call_later(RETRY_S, self._retry, gateway)

    def _retry(self, gateway: str) -> None:
        self._retries.discard(gateway)
        self._owe({gateway})

    def _failed(self, gateway: str, key: AttemptKey, failure: AttemptFailure) -> Failed:
        return Failed(
            **self._ends(gateway),
            key=key,
            reason=failure.reason,
            message=failure.message,
            retryable=failure.retryable,
        )

    def _ends(self, gateway: str) -> dict[str, Any]:
        return {"sender": self._life.epoch, "receiver": gateway}

    # time -----------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Ends all sequences of gateways that were silent for too long; called with each heartbeat."""
        now = time.monotonic()
        heard = {gateway: peer.heard for gateway, peer in self._peers.items()}
        strangers = self.ledger.known_gateways() - heard.keys()
        self._strangers = {gateway: self._strangers.get(gateway, now) for gateway in strangers}
        heard |= self._strangers
        silent = [gateway for gateway, at in heard.items() if at < now - self._life.config.gateway_silence]
        self._keys.forget(silent)
        for gateway in silent:
            self._peers.pop(gateway, None)
            entries = self.ledger.of_gateway(gateway)
            if entries:
                log.warning("gateway %s is silent; its %d sequences end", gateway, len(entries))
            for entry in entries:
                if not entry.ended():
                    self._life.inbox.post(Kill(entry.key, "gateway silent"))
                    self._transfer.handle(CancelAttempt(entry.key))
            self.ledger.forget(entries)
        self.ledger.expire(self._life.clock.now())
