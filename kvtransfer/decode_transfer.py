"""The decode side's driver: one control ROUTER for all prefill workers, and the ways of their payloads.

It runs on the I/O thread's asyncio loop. A payload is checked first: it must come from the user that its link's Offer
named, and on a sealed link it must decrypt.
"""

import asyncio
import logging
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import zmq
import zmq.asyncio

from contracts.errors import MessageError, SealError
from contracts.ids import AttemptKey
from contracts.kinds import Transport
from contracts.kv.spec import KVSpec, PayloadConversion
from contracts.messages.gateway import REASON_CROWDED
from contracts.messages.handoff import Grant, Join, Layer, Open, Refused, ToDecode, decode_to_decode
from contracts.messages.wire import Addressed, encode
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from infra.network.malformed_frames import MalformedFrames
from infra.network.sockets import router, send_now
from infra.process.tasks import Tasks
from infra.redis.records import KVLink, UnreachedPeer
from infra.redis.worker_load import HandoffCounts
from kvtransfer.device_looks import DeviceLooks
from kvtransfer.events import BlocksWanted, Dropped, FromDecode, Landed, ToDecodeEngine
from kvtransfer.handoff import HandoffKey
from kvtransfer.memory import DigestedCopy, KVMemory
from kvtransfer.protocol.decode_links import DecodeLinks
from kvtransfer.protocol.instructions import Instruction, Land, Send
from kvtransfer.protocol.outcomes import Outcomes
from kvtransfer.transports.joining import start_nixl
from kvtransfer.transports.nixl.landings import NixlLandings
from kvtransfer.transports.payload_sockets import PayloadSockets
from kvtransfer.transports.pool.writers import PoolWriters
from kvtransfer.transports.session import ArrivedPayload, Frames, PayloadSession
from kvtransfer.transports.sessions import PayloadSessions

MESSAGES_PER_TURN = 16  # handled before other tasks have their turn
MESSAGES_PER_CREDIT = 4  # handled before credit is sent, so that senders need not wait for it
MIN_SLEEP_S = 0.001
log = logging.getLogger("baton.handoff")


class Receives(Protocol):
    """Handles the frames of a received message."""

    def __call__(self, frames: list[zmq.Frame]) -> None: ...


class DecodeTransfer:
    """Asks the engine for blocks (`BlocksWanted`), lands payloads in them, and reports `Landed` or `Dropped`."""

    def __init__(
        self,
        config: TransferConfig,
        epoch: str,
        spec: KVSpec,
        memory: KVMemory,
        network: Network,
        tell_engine: Callable[[ToDecodeEngine], None],
        *,
        trace: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Binds its sockets, and starts reading. Raises `ConfigError` if they cannot be bound."""
        self.side = DecodeLinks(config, epoch, spec, trace)
        self._config = config
        self._memory = memory
        self._tell_engine = tell_engine
        self._clock = clock
        self._nixl = start_nixl(config, network)
        self._landings = None if self._nixl is None else NixlLandings(self._nixl, lambda: bool(self.side.handoffs))
        self._payload_sockets = PayloadSockets(config, network, self._take_ring)
        try:
            self._socket, self.handoff_address = router(network.context, network.bind, network.keys)
        except BaseException:
            self._payload_sockets.close()
            raise
        network.gatekeeper.watch(self._socket)
        is_offered = bool(self._payload_sockets.shm) and "pool" in self._payload_sockets.transports
        self._writers = PoolWriters(spec, memory, self._writer_gone, is_offered=is_offered)
        self._sessions = PayloadSessions(config, epoch, network, self._payload_sockets, self._writers, self._landings)
        self._malformed: MalformedFrames[bytes] = MalformedFrames(config.malformed_rate, config.cut_off)
        self.refused: Counter[str] = Counter()  # dropped frames, by reason
        self._outcomes = Outcomes()
        self._granting = DeviceLooks()  # Grants that wait for moves of their blocks
        self._digesting = DeviceLooks()  # payloads that wait for their digests
        self._wake = asyncio.Event()
        self._idle = True  # no handoff has a deadline, so the time keeper may sleep for long
        self._tasks = Tasks("the handoff from prefill workers")
        reading = [self._read(self._socket, self._receive)]
        reading += [self._read(each, self._payloads(name)) for name, each in self._payload_sockets.sockets.items()]
        for work in (*reading, self._keep_time()):
            self._tasks.start(work)

    def handle(self, event: FromDecode) -> None:
        """Takes an event of the engine. It is ignored if its handoff is over: then a `Dropped` is on its way.

        Raises `IllegalMove` for an event that the handoff's state does not allow.
        """
        self._carry_out(self.side.handle(event, self._clock()))
        self._wake.set()  # deadlines may have changed

    def knows(self, key: AttemptKey) -> bool:
        return self.side.knows(key)

    def drain(self) -> None:
        self.side.drain()

    def counts(self) -> HandoffCounts:
        dropped = {reason.replace(" ", "_"): count for reason, count in self.refused.items()}
        return self._outcomes.counts({**dropped, "stray": self.side.strays})

    def links(self) -> list[KVLink]:
        return self._sessions.links()

    def unreached(self) -> tuple[UnreachedPeer, ...]:
        return ()

    async def run(self) -> None:
        await self._tasks.wait()

    async def close(self) -> None:
        """Closes the sockets. The senders of open handoffs notice the silence."""
        await self._tasks.close()
        self._socket.close(0)
        self._payload_sockets.close()
        self._sessions.close()
        self._writers.close()
        self._granting.close()
        self._digesting.close()
        if self._nixl is not None and self._landings is not None:
            self._landings.close()
            await self._nixl.close()

    async def _read(self, socket: zmq.asyncio.Socket, receive: Receives) -> None:
        while True:
            receive(await socket.recv_multipart(copy=False))
            for at in range(1, MESSAGES_PER_TURN):
                try:
                    frames = await socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                receive(frames)
                if at % MESSAGES_PER_CREDIT == 0:
                    self._carry_out(self.side.credits())
            self._carry_out(self.side.credits())
            if self._idle:
                self._wake.set()
            await asyncio.sleep(0)

    async def _keep_time(self) -> None:
        while True:
            self._wake.clear()
            self._carry_out(self.side.tick(self._clock()))
            self._sessions.forget_old(self._clock())
            due = self.side.next_deadline()
            self._idle = due is None
            # New messages are due after verify_deadline at the earliest, so they need not end this wait.
            longest = self._config.verify_deadline
            idle = self._config.remember / 4
            pause = idle if due is None else min(longest, max(MIN_SLEEP_S, due - self._clock()))
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _receive(self, frames: list[zmq.Frame]) -> None:
        link, now = frames[0].bytes, self._clock()
        if not self._malformed.listens(link, now):
            self.refused["cut off"] += 1
            return
        try:
            if len(frames) != 2:
                raise MessageError("a message is one frame")
            message: ToDecode = decode_to_decode(frames[1].buffer)
            if isinstance(message, Join):
                self._join(link, message, now)
            elif isinstance(message, Layer):
                session = self._sessions.of(link)
                if session is None:
                    self._carry_out([self.side.unjoined(link, message)])
                elif link in self._writers:
                    self._arrive(link, session.from_pool(message), now)
                else:
                    self._arrive(link, self._in_ring(session, message), now)
            else:
                if isinstance(message, Open):
                    self._sessions.asked(link, message.form.codec)
                self._carry_out(self.side.receive(link, message, 0, now))
        except MessageError:
            self._count_malformed(link, "malformed", now)

    def _in_ring(self, session: PayloadSession, header: Layer) -> ArrivedPayload:
        """Finds a payload that its sender has put into a ring before it sent this header. Raises `MessageError`."""
        if session.ring is None and self._payload_sockets.rings is not None:
            self._payload_sockets.rings.receive()  # the ring came before
        if session.ring is not None or session.landing is None or self._landings is None:
            return session.from_ring(header)
        if not session.landing.is_admitted:
            self._landings.read_token(session.landing)  # the token came before
        self._landings.expect_payloads()
        return session.from_nixl(header)

    def _payloads(self, transport: Transport) -> Receives:
        def receive(frames: list[zmq.Frame]) -> None:
            now = self._clock()
            session = self._sessions.of_user(frames[0].bytes)
            # An admitted peer may have connected under another user's identity.
            if session is None or len(frames) < 2 or frames[1].get("User-Id") != session.user:
                self.refused["unknown user"] += 1
                return
            try:
                ready = session.in_order(transport, [frame.buffer for frame in frames[1:]])
            except MessageError:
                self._count_malformed(session.link, "malformed", now)
                return
            for each in ready:
                self._payload(session, transport, each, now)

        return receive

    def _payload(self, session: PayloadSession, transport: Transport, frames: Frames, now: float) -> None:
        try:
            self._arrive(session.link, session.from_socket(transport, frames), now)
        except SealError:  # an attacker in between may have sent it: no reason to cut the link off
            self.refused["unsealed"] += 1
        except MessageError:
            self._count_malformed(session.link, "malformed", now)

    def _take_ring(self, user: bytes, token: bytes, descriptor: int) -> None:
        """Takes a sender's ring, or a socket by which it asks for the pool's memory."""
        session = self._sessions.of_user(user)
        try:
            if session is None:
                raise MessageError("a ring of an unknown user")
            session.check_token(token)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                self._writers.take(session.link, descriptor)
                self._carry_out(self.side.writer_came(session.link, self._clock()))
            else:
                session.take_ring(descriptor)
        except MessageError as error:
            self.refused["ring"] += 1
            log.warning("a prefill worker's shared memory is not taken: %s", error)

    def _writer_gone(self, link: bytes) -> None:
        self._carry_out(self.side.writer_gone(link, self._clock()))

    def _join(self, link: bytes, join: Join, now: float) -> None:
        offer = self._sessions.join(link, join, now)
        if offer is not None:
            self._carry_out([Send(offer, link)])
        elif (session := self._sessions.of(link)) is not None and session.landing is not None:
            session.landing.on_made = lambda: self._join(link, join, self._clock())

    def _arrive(self, link: bytes, arrived: ArrivedPayload, now: float) -> None:
        self._sessions.heard(link, now)
        for instruction in self.side.receive(link, arrived.header, arrived.size, now):
            self._carry_out(self._land(instruction, arrived) if isinstance(instruction, Land) else [instruction])

    def _land(self, land: Land, arrived: ArrivedPayload) -> Sequence[Instruction]:
        header, target = land.header, land.blocks
        if arrived.payload is None:
            if isinstance(target, PayloadConversion):
                raise MessageError("a payload of another form in the pool")
            if self._memory.devices is not None:
                self._digest_later(land, self._memory.devices.landed(header.group, header.layer, header.first, target))
                return []
            arrived.payload = self._memory.landed(header.group, header.layer, target)
        elif isinstance(target, PayloadConversion):
            self._memory.convert(target, arrived.payload)
        else:
            self._memory.write(header.group, header.layer, target, arrived.payload)
        return self.side.landed(land, arrived.digest, self._clock())

    def _digest_later(self, land: Land, landed: DigestedCopy) -> None:
        def is_known() -> bool:
            return landed.done

        def known() -> None:
            self._carry_out(self.side.landed(land, landed.digest, self._clock()))

        self._digesting.when((land.key, land.header.number), is_known, known)

    def _grant(self, grant: Grant, link: bytes) -> None:
        """Sends a Grant when its blocks may be written. A repetition that comes earlier is dropped."""
        key = HandoffKey(grant.receiver, grant.handoff)
        devices = self._memory.devices
        if not grant.blocks or devices is None:
            self._send(grant, link)
        elif key not in self._granting:
            self._granting.when(key, devices.granting(grant.blocks), partial(self._granted, grant, link))

    def _granted(self, grant: Grant, link: bytes) -> None:
        if HandoffKey(grant.receiver, grant.handoff) in self.side.handoffs:
            self._send(grant, link)

    def _count_malformed(self, link: bytes, reason: str, now: float) -> None:
        self.refused[reason] += 1
        if self._malformed.count(link, now):
            log.warning("a prefill worker is cut off for %g s: %s frames", self._config.cut_off, reason)
            self._sessions.forget(link)
            self._carry_out(self.side.cut_off(link, "cut_off", now))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(Grant() as grant, link):
                    self._grant(grant, link)
                case Send(message, link):
                    self._send(message, link)
                case BlocksWanted() | Landed() | Dropped():
                    self._count(instruction)
                    self._tell_engine(instruction)
                case _:
                    raise AssertionError(f"{type(instruction).__name__} is not for the decode side")

    def _send(self, message: Addressed, link: bytes) -> None:
        send_now(self._socket, [link, encode(message)])  # a peer whose queue is full will ask again
        if isinstance(message, Grant) and self._landings is not None:
            self._landings.expect_payloads()
        if isinstance(message, Refused) and message.reason != REASON_CROWDED:
            self._outcomes.given_up(message.reason)

    def _count(self, event: ToDecodeEngine) -> None:
        match event:
            case Landed():
                self._outcomes.landed(event.land_ms)
            case Dropped(reason=reason, owned=False):
                self._outcomes.given_up(reason)
