"""The gateway's connection to one life of one worker: Hello and Welcome, pings, and typed messages both ways."""

import asyncio
import logging
import time
from collections.abc import Callable

import zmq
import zmq.asyncio

from core.errors import MessageError
from core.handshakes import Handshakes
from core.link_keys import LinkKeys
from core.messages import (
    VERSION,
    Ask,
    Cancel,
    Ended,
    FromWorker,
    Hello,
    Ping,
    Pong,
    ToWorker,
    Welcome,
    decode_from_worker,
    encode,
)
from core.records import WorkerRecord
from core.sockets import dealer, try_send
from gateway.workers.liveness import Health, Liveness
from gateway.workers.router import Candidate

OUTBOX = 8192  # messages that may wait to be written; all of them are repeated when they matter
FAILED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
log = logging.getLogger("baton.gateway")


class Link(Candidate):
    """A worker: its record, its health, its socket. `receive` gets every message that is meant for this gateway."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        keys: LinkKeys,
        epoch: str,
        record: WorkerRecord,
        receive: Callable[["Link", FromWorker], None],
    ) -> None:
        super().__init__(record)
        self.liveness = Liveness(time.monotonic())
        self.welcome = False
        self.dropped = 0
        self._epoch = epoch
        self._receive = receive
        self._socket = dealer(context, record.address, keys)
        self._handshakes = Handshakes(self._socket, FAILED, self._broke_off)
        self._broken_off = False
        self._outbox: asyncio.Queue[ToWorker] = asyncio.Queue(OUTBOX)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    @property
    def epoch(self) -> str:
        """The worker's."""
        return self.record.epoch

    def look(self, now: float) -> None:
        """Called often: pings when it is time, greets until welcomed, and settles whether the worker is usable."""
        number = self.liveness.look(now)
        if number is not None:
            if not self.welcome or self.liveness.health is not Health.ALIVE:
                self._put(Hello(sender=self._epoch, receiver=self.epoch))  # it may have forgotten this gateway
            if self.welcome:
                self._put(Ping(sender=self._epoch, receiver=self.epoch, number=number))
        self.usable = self.welcome and self.liveness.health is Health.ALIVE

    def ask(self, request: str, sample: int, attempt: int, next_index: int) -> None:
        """The tokens from `next_index`, or how the sequence stands."""
        self._put(Ask(**self._ends(), request=request, sample=sample, attempt=attempt, next_index=next_index))

    def cancel(self, request: str, sample: int, attempt: int) -> None:
        """Attempts up to this one are dead."""
        self._put(Cancel(**self._ends(), request=request, sample=sample, attempt=attempt))

    def ended(self, request: str, sample: int, attempt: int) -> None:
        """The worker may forget this sequence."""
        self._put(Ended(**self._ends(), request=request, sample=sample, attempt=attempt))

    async def close(self) -> None:
        """Closes the socket; what was not sent is lost."""
        self.usable = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._handshakes.close()
        self._socket.close(0)

    def _ends(self) -> dict[str, str]:
        return {"sender": self._epoch, "receiver": self.epoch}

    def _put(self, message: ToWorker) -> None:
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.dropped += 1

    async def _write(self) -> None:
        while True:
            message = await self._outbox.get()
            if not await try_send(self._socket, [encode(message)]):
                self.dropped += 1  # not connected, or the queue is full: what matters is repeated

    async def _read(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                message = decode_from_worker(frames[-1])
            except MessageError as error:
                log.warning("dropped a message from worker %s: %s", self.epoch, error)
                self.dropped += 1
                continue
            if message.receiver != self._epoch or message.sender != self.epoch:
                self.dropped += 1
                continue
            self.liveness.heard(time.monotonic())
            match message:
                case Welcome(version=version):
                    self._greeted(version)
                case Pong(step_due_ms=due):
                    self.liveness.pong(due)
                case _:
                    self._receive(self, message)

    def _broke_off(self) -> None:
        """A worker with another secret ends every handshake, without a word; one that just dies may end one."""
        if not self._broken_off:
            self._broken_off = True
            log.error(
                "no connection to worker %s at %s: it does not have this gateway's secret (--secret-file)",
                self.epoch,
                self.record.address,
            )

    def _greeted(self, version: int) -> None:
        if version == VERSION:
            self.welcome = True
        else:
            log.error("worker %s speaks protocol version %d, this gateway %d", self.epoch, version, VERSION)
