"""The I/O thread: an asyncio loop that owns sockets, Redis, the heartbeat and landing bytes."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import structs

from core.config import WorkerConfig
from core.ending import end
from core.errors import BatonError, StoreUnavailable
from core.ids import SequenceKey
from core.network import Network
from core.queue import PURPOSE, JobQueue
from core.records import HandoffCounts, KVLink, StatsSample, WorkerRecord
from core.registry import BEAT, add_stats, publish, withdraw
from core.sealing import Sealer
from core.sockets import router
from core.store import Outage, ServerClock, Store, connect
from core.strikes import Strikes
from worker.busy_page import BusyPage
from worker.events import Begin, Emit, Fail, Kill, Phase, Stop
from worker.gateway_link import GatewayLink
from worker.intake import Intake
from worker.ledger import Failure, Ledger, Verdict
from worker.mailbox import Inbox, Outbox
from worker.vitals import Vitals

log = logging.getLogger("baton.worker")
FLUSH_SECONDS = 1.0  # at the end, for what gateways are still owed


class Transfer(Protocol):
    """A role's side of the handoff, on the I/O thread."""

    handoff_address: str

    def handle(self, event: Any) -> bool:
        """An event from the engine thread; False if it is not about handoffs."""

    def cancel(self, request: str, sample: int, attempt: int) -> None:
        """Attempts up to this one are dead."""

    def knows(self, request: str, sample: int, attempt: int) -> bool:
        """Whether this attempt is on its way here, though the engine has not begun it."""

    def drain(self) -> None:
        """Take no new handoffs."""

    def counts(self) -> HandoffCounts:
        """What became of the handoffs so far, and the frames that were dropped."""

    def links(self) -> list[KVLink]:
        """How KV passes, for each worker of the other role that there is a link with."""

    async def run(self) -> None:
        """Raises what a task of it dies of."""

    async def close(self) -> None:
        """Closes its sockets."""


MakeTransfer = Callable[[Network, Callable[[Any], None]], Transfer]


class IOThread(threading.Thread):
    """Serves one life of a worker. `ready` is set when it is registered; an error ends the engine thread too."""

    def __init__(
        self,
        config: WorkerConfig,
        record: WorkerRecord,
        secret: bytes,
        clock: ServerClock,
        vitals: Vitals,
        inbox: Inbox[Any],
        outbox: Outbox[Any],
        busy: BusyPage,
        make_transfer: MakeTransfer,
    ) -> None:
        super().__init__(name="io", daemon=True)
        self._config = config
        self._record = record
        self._secret = secret
        self._clock = clock
        self._vitals = vitals
        self._inbox = inbox
        self._outbox = outbox
        self._busy = busy
        self._make_transfer = make_transfer
        self._ledger = Ledger()
        self._owed: set[str] = set()
        self._transfer: Transfer
        self._owing: asyncio.Event
        self._told = threading.Event()
        self._wake: Callable[[], None] = lambda: None
        self.ready = threading.Event()
        self.error = ""
        self.address = ""

    def run(self) -> None:
        """The thread's body."""
        try:
            asyncio.run(self._serve())
        except (BatonError, OSError) as error:
            self._fail(str(error))
        except BaseException as error:
            log.exception("the I/O thread ends")
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._wake = lambda: None  # the loop is closed
            self.ready.set()

    def _fail(self, error: str) -> None:
        self.error = error
        self._inbox.post(Stop(error))

    def stop(self) -> None:
        """Ends the thread after what gateways are owed has left; called from the engine thread."""
        self._told.set()
        with contextlib.suppress(RuntimeError):  # the loop closed at this moment
            self._wake()
        self.join(FLUSH_SECONDS + 5)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        stopped, self._owing = asyncio.Event(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(stopped.set)

        self._wake = wake
        network = Network.of(self._secret)
        store = connect(self._config.store.redis)
        transfer = self._make_transfer(network, self._inbox.post)
        socket, self.address = router(network.context, self._config.host, network.keys)
        network.gatekeeper.watch(socket)
        link = GatewayLink(
            socket,
            self._record.epoch,
            self._ledger,
            self._vitals,
            self._clock,
            self._config.gateway_silence,
            self._inbox.post,
            transfer.cancel,
            transfer.knows,
            Strikes(self._config.transfer.malformed_rate, self._config.transfer.cut_off),
        )
        self._transfer = transfer
        jobs = JobQueue(store, Sealer(self._secret, PURPOSE), self._record.epoch)
        intake = Intake(
            jobs,
            self._ledger,
            self._vitals,
            self._config.jobs_ahead,
            self._inbox.post,
            link.started,
            transfer.cancel,
        )
        broken: asyncio.Future[None] = loop.create_future()
        self._outbox.attach(loop, self._handle, broken.set_exception)
        await self._clock.sync(store)
        await jobs.open()  # before the worker registers: nobody may add to a stream that is not there
        await self._beat(store, jobs, link)
        self.ready.set()
        works = (
            link.run(),
            intake.run(),
            transfer.run(),
            self._heartbeat(store, jobs, link),
            self._flush(link),
            _raised(broken),
        )
        tasks = [network.gatekeeper.task, *map(asyncio.create_task, works)]
        stopping = asyncio.create_task(stopped.wait())
        if self._told.is_set():
            stopped.set()
        try:
            await self._until_stopped(tasks, stopping)
            await self._flush_all(link)
            await self._deregister(store, jobs)
        finally:
            self._outbox.detach()
            await end([*tasks, stopping])
            await transfer.close()
            socket.close(0)
            await store.aclose()
            await network.close()

    async def _deregister(self, store: Store, jobs: JobQueue) -> None:
        try:
            await withdraw(store, self._record)
            await jobs.close()
        except StoreUnavailable as error:
            log.warning("left without deregistering: %s", error)

    async def _until_stopped(self, tasks: list[asyncio.Task[None]], stopping: asyncio.Task[bool]) -> None:
        """Returns when told to stop. A task that fails ends the thread; the intake may end by itself."""
        waiting: set[asyncio.Task[Any]] = {*tasks, stopping}
        while not stopping.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _flush_all(self, link: GatewayLink) -> None:
        until = time.monotonic() + FLUSH_SECONDS
        while (owed := list(self._ledger.gateways())) and time.monotonic() < until:
            for gateway in owed:
                await link.flush(gateway)
            await asyncio.sleep(0.01)

    async def _heartbeat(self, store: Store, jobs: JobQueue, link: GatewayLink) -> None:
        outage = Outage(log, "no heartbeat until it is back")
        while True:
            await asyncio.sleep(BEAT)
            link.watch()
            self._busy.sweep()
            self._ledger.expire(self._clock.now())
            if self._vitals.draining:
                self._transfer.drain()
            try:
                await self._beat(store, jobs, link)
                outage.ends()
            except StoreUnavailable as error:
                outage.begins(error)

    async def _beat(self, store: Store, jobs: JobQueue, link: GatewayLink) -> None:
        await self._clock.sync(store)
        await jobs.refresh()
        counts = self._transfer.counts()
        dropped = jobs.dropped + link.dropped + sum(counts.dropped.values())
        load = structs.replace(self._vitals.load, dropped=dropped, handoff=counts)
        record = structs.replace(
            self._record,
            address=_announced(self.address, self._config.announce),
            handoff_address=_announced(self._transfer.handoff_address, self._config.announce),
            draining=self._vitals.draining,
            load=load,
            links=self._transfer.links(),
        )
        now = self._clock.now()
        await publish(store, record, now)
        await add_stats(store, StatsSample(now, record.epoch, record.role, load))

    def _handle(self, event: Any) -> None:
        """An event from the engine thread."""
        match event:
            case Emit(emitted=emitted):
                self._owe({self._ledger.emit(item) for item in emitted})
            case Begin(gateway=gateway, deadline=deadline, emitted=emitted):
                key = SequenceKey(emitted.request, emitted.sample)
                verdict, superseded = self._ledger.begin(key, emitted.attempt, gateway, emitted.index, deadline)
                if superseded:
                    self._inbox.post(Kill(key, superseded, "superseded"))
                if verdict is Verdict.DEAD:
                    self._inbox.post(Kill(key, emitted.attempt, "cancelled"))
                self._owe({self._ledger.emit(emitted)})
            case Fail(key=key, attempt=attempt, reason=reason, message=message, retryable=retryable):
                self._owe({self._ledger.fail(key, attempt, Failure(reason, message, retryable))})
            case Phase(key=key, attempt=attempt, state=state):
                self._ledger.note(key, attempt, state)
            case _:
                handled = self._transfer.handle(event)
                assert handled, f"nobody handles {type(event).__name__}"

    def _owe(self, gateways: set[str | None]) -> None:
        """Sends to these gateways soon: once, however many events come in between."""
        self._owed |= {gateway for gateway in gateways if gateway is not None}
        if self._owed:
            self._owing.set()

    async def _flush(self, link: GatewayLink) -> None:
        while True:
            await self._owing.wait()
            self._owing.clear()
            gateways, self._owed = self._owed, set()
            for gateway in sorted(gateways):
                await link.flush(gateway)


async def _raised(broken: asyncio.Future[None]) -> None:
    """Raises what the handling of an event has died of."""
    await broken


def _announced(endpoint: str, announce: str) -> str:
    """`tcp://host:port` with the host that others are to use."""
    return f"tcp://{announce}:{endpoint.rpartition(':')[2]}" if announce and endpoint else endpoint
