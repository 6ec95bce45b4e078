"""Connects the gateway to one life of one worker: Hello and Welcome, pings, and typed messages both ways."""

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from typing import Protocol

import zmq
import zmq.asyncio

from contracts.errors import MessageError
from contracts.ids import AttemptKey
from contracts.messages.gateway import (
    MAX_QUESTIONS,
    Ask,
    Cancel,
    Ended,
    Hello,
    Kept,
    News,
    Piece,
    Ping,
    Pong,
    Question,
    ToWorker,
    Wanted,
    Welcome,
    decode_from_worker,
)
from contracts.messages.packed_ids import packed
from contracts.messages.wire import VERSION, encode
from gateway.workers.liveness import Liveness, WorkerHealth
from gateway.workers.worker import Worker
from infra.network.curve_keys import CurveKeys
from infra.network.socket_monitor import SocketMonitor
from infra.network.sockets import token_dealer, try_send
from infra.process.tasks import Tasks
from infra.redis.records import WorkerRecord

MAX_OUTBOX_MESSAGES = 8192  # unwritten messages; more are dropped, since all that matter are repeated
MAX_MESSAGES_BEFORE_PIECES = 64  # unwritten messages from which on no piece of a prompt is added
MAX_MESSAGES_PER_TURN = 16  # messages read or written before other tasks get a turn …
MAX_TURN_S = 0.001  # … or s spent on the messages read
KEY_REFUSED_EVENT = zmq.Event.HANDSHAKE_FAILED_AUTH
"""Event of a worker that refuses this gateway's key. ZeroMQ's other events also follow slow handshakes and dying
processes."""
log = logging.getLogger("baton.gateway")


class WorkerListener(Protocol):
    """Receiver of workers' messages about sequences, and of their deaths."""

    def received(self, worker: "WorkerConnection", news: News) -> None:
        """Takes a message that is addressed to this gateway."""

    def dropped(self) -> None:
        """Counts a message that was malformed, or addressed to another life of either end."""

    def died(self, worker: "WorkerConnection") -> None:
        """Takes a worker's death, once."""


class WorkerConnection(Worker):
    """Connection to one life of a worker: watches its health, and passes messages about sequences to `listener`.

    Created inside a running event loop; `epoch` is the gateway's. Raises `ZMQError` for an invalid address, or if the
    process has no descriptor left.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        keys: CurveKeys,
        epoch: str,
        record: WorkerRecord,
        listener: WorkerListener,
    ) -> None:
        super().__init__(record)
        self.since = time.monotonic()  # when it was made, s
        self.learned_at = self.since  # assumed until a record shows newer steps
        self.liveness = Liveness(self.since)
        self.speaks = VERSION  # the protocol version of its Welcome, once that has come
        self._overdue = False  # its engine should have answered by now
        self._gateway = epoch
        self._listener = listener
        self._tasks = Tasks(f"the connection to worker {record.epoch}")
        self._socket = token_dealer(context, record.address, keys)
        try:
            events = KEY_REFUSED_EVENT | zmq.Event.DISCONNECTED
            self._handshakes = SocketMonitor(self._socket, events, self._happened, self._tasks)
        except zmq.ZMQError:
            self._socket.close(0)
            raise
        self._named_refusal = False
        self._outbox: asyncio.Queue[ToWorker] = asyncio.Queue(MAX_OUTBOX_MESSAGES)
        self._tasks.start(self._read())
        self._tasks.start(self._write())

    @property
    def broken(self) -> bool:
        return self._tasks.error is not None

    @property
    def waiting(self) -> int:
        return self._outbox.qsize()

    def look(self, now: float) -> None:
        """Pings when due, greets until welcomed, and updates `usable` and `late`. Call it often."""
        number = self.liveness.look(now)
        if number is not None:
            if not self.welcomed or self.liveness.health is not WorkerHealth.ALIVE:
                # the worker may have forgotten this gateway
                self._put(Hello(sender=self._gateway, receiver=self.epoch))
            if self.welcomed:
                ends = {"sender": self._gateway, "receiver": self.epoch}
                self._put(Ping(**ends, number=number, keys=self.kept.heard))
        self.usable = self.welcomed and self.liveness.takes_work
        self.late = self._overdue or self.liveness.health is WorkerHealth.SUSPECT

    def ask(self, asked: Sequence[Question]) -> None:
        for begin in range(0, len(asked), MAX_QUESTIONS):
            self._put(Ask(sender=self._gateway, receiver=self.epoch, asked=tuple(asked[begin : begin + MAX_QUESTIONS])))

    def cancel(self, key: AttemptKey) -> None:
        self._put(Cancel(sender=self._gateway, receiver=self.epoch, key=key))

    def piece(self, wanted: Wanted, ids: Sequence[int]) -> None:
        """Sends token ids of a prompt, or drops them while many messages are unwritten; the worker asks again."""
        if self.waiting < MAX_MESSAGES_BEFORE_PIECES:
            self._put(
                Piece(
                    sender=self._gateway,
                    receiver=self.epoch,
                    request=wanted.request,
                    attempt=wanted.attempt,
                    first=wanted.first,
                    ids=packed(ids),
                )
            )

    def ended(self, key: AttemptKey) -> None:
        self._put(Ended(sender=self._gateway, receiver=self.epoch, key=key))

    async def close(self) -> None:
        self.usable = False
        await self._handshakes.close()
        await self._tasks.close()
        self._socket.close(0)

    def _put(self, message: ToWorker) -> None:
        if not self._outbox.full():
            self._outbox.put_nowait(message)

    async def _write(self) -> None:
        for number in itertools.count(1):
            if number % MAX_MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)  # while messages wait, writing them never suspends
            # The message is lost if the worker is disconnected or its queue is full; important messages are repeated.
            await try_send(self._socket, [encode(await self._outbox.get())])

    async def _read(self) -> None:
        count, spent = 0, 0.0
        while True:
            if count >= MAX_MESSAGES_PER_TURN or spent >= MAX_TURN_S:
                await asyncio.sleep(0)  # while messages lie ready, reading them never suspends
                count, spent = 0, 0.0
            frames = await self._socket.recv_multipart()
            began = time.monotonic()
            self._take(frames[-1], began)
            count, spent = count + 1, spent + time.monotonic() - began

    def _take(self, data: bytes, now: float) -> None:
        """Handles a message; drops and counts it if it is malformed or addressed to another life."""
        try:
            message = decode_from_worker(data)
        except MessageError as error:
            log.warning("dropped a message from worker %s: %s", self.epoch, error)
            self._listener.dropped()
            return
        if message.receiver != self._gateway or message.sender != self.epoch:
            self._listener.dropped()
            return
        self.liveness.heard(now)
        match message:
            case Welcome(version=version):
                self._greeted(version)
            case Pong(step_due_ms=due, taken=taken, backlog=backlog):
                self.liveness.pong(due)
                self._overdue = due < 0
                self.taken = taken
                if backlog is not None:
                    self.reports(backlog, taken, now)
            case Kept(news=news):
                self.kept.take(news)
            case _:
                self._listener.received(self, message)

    def _happened(self, event: int) -> None:
        if event == zmq.Event.DISCONNECTED:
            self.liveness.disconnected(time.monotonic())
            return
        if not self._named_refusal:
            self._named_refusal = True
            log.error(
                "no connection to worker %s at %s: it refuses this gateway's key (--secret-file)",
                self.epoch,
                self.record.address,
            )

    def _greeted(self, version: int) -> None:
        self.speaks = version
        if version == VERSION:
            self.welcomed = True
            self.liveness.greeted()
