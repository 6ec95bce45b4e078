"""The I/O thread: an asyncio loop with sockets, Redis, the heartbeat, and landing KV."""

import asyncio
import logging
import threading
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from msgspec import structs

from contracts.errors import BatonError
from engine.device import use_device
from infra.network.addresses import Network
from infra.network.sealing import Sealer, Signer
from infra.network.sockets import token_router
from infra.process.ending import end
from infra.process.status import StatusFile
from infra.process.tasks import Tasks, child
from infra.redis.clients import Store, connect
from infra.redis.queue import JOB_PURPOSE, JobQueue
from infra.redis.records import WorkerRecord
from infra.redis.registry import RECORD_PURPOSE as RECORDS
from infra.redis.store import Outage, until_answered
from worker.adapters import AdapterSigners
from worker.engine_watch import CHECK_INTERVAL_S, EngineWatch
from worker.events import ToGateway
from worker.gateways.connections import GatewayConnections
from worker.gateways.intake import Intake
from worker.heartbeat import Heartbeat
from worker.life import Life
from worker.transfer import MakeTransfer, Transfer

MAX_FLUSH_S = 1.0  # at the end, for sending pending messages
MAX_CLOSE_S = 5.0  # for closing everything afterwards
log = logging.getLogger("baton.worker")


class IOThread(threading.Thread):
    """Serves one life of a worker, from its registration on. An error ends the engine thread too."""

    def __init__(
        self, life: Life, record: WorkerRecord, secret: bytes, make_transfer: MakeTransfer, device: torch.device
    ) -> None:
        """`record` lacks the addresses, which are known once the sockets are bound; `device` has the KV pool."""
        super().__init__(name="io", daemon=True)
        self._life = life
        self._record = record
        self._secret = secret
        self._make_transfer = make_transfer
        self._device = device
        self._status = StatusFile(life.config.status_file)
        self.registered = False  # Redis has shown this worker at least once
        self.error: BatonError | None = None  # named error that ended the thread
        self._watch = EngineWatch(life.status, life.config.hang_seconds)
        self._stopping = threading.Event()  # the engine thread has ended its loop

    def run(self) -> None:
        """Serves until `stop`. An error stops the engine thread, or ends the process."""
        try:
            use_device(self._device)
            asyncio.run(self._serve())
        except BatonError as error:
            self.error = error
            self._life.inbox.stop(str(error))
        except OSError as error:
            self._life.inbox.stop(str(error))
        except BaseException as error:
            log.exception("the I/O thread ends")
            self._life.inbox.stop(f"{type(error).__name__}: {error}")
        while not self._stopping.wait(CHECK_INTERVAL_S):
            self._watch.look(time.monotonic())

    def stop(self) -> None:
        """Ends the thread after pending messages were sent; called from the engine thread."""
        self._stopping.set()
        self._life.outbox.close()
        self.join(MAX_FLUSH_S + MAX_CLOSE_S)

    async def _serve(self) -> None:
        async with AsyncExitStack() as opened:
            parts = self._open(opened)
            tasks = Tasks("the I/O thread")
            opened.push_async_callback(tasks.close)
            delivering = tasks.start(self._life.outbox.deliver(parts.handle))
            tasks.start(parts.network.gatekeeper.tasks.wait())
            tasks.start(self._work(parts, tasks))
            await _until(delivering, tasks)
            parts.intake.leave()
            await parts.connections.send_all(MAX_FLUSH_S)
            if self.registered:
                await parts.heartbeat.stop()

    def _open(self, opened: AsyncExitStack) -> "_Parts":
        """Binds the sockets and connects to Redis; `opened` closes them."""
        life = self._life
        network = Network.of(self._secret, life.bind)
        opened.push_async_callback(network.destroy)
        store = connect(life.config.store.redis)
        opened.push_async_callback(store.aclose)
        socket, address = token_router(network.context, network.bind, network.keys)
        opened.callback(socket.close, 0)
        network.gatekeeper.watch(socket)
        transfer = self._make_transfer(network, life.inbox.post)
        opened.push_async_callback(transfer.close)
        jobs = JobQueue(store, Sealer(self._secret, JOB_PURPOSE), life.epoch)
        connections = GatewayConnections(life, socket, transfer)
        intake = Intake(life, jobs, connections, transfer)
        record = structs.replace(self._record, address=address, handoff_address=transfer.handoff_address)
        heartbeat = Heartbeat(life, record, store, Signer(self._secret, RECORDS), jobs, connections, transfer)
        return _Parts(network, store, address, transfer, jobs, connections, intake, heartbeat)

    async def _register(self, parts: "_Parts") -> None:
        """Registers the worker. Raises `StoreUnavailable`; may be called again."""
        await self._life.clock.sync(parts.store)
        await self._life.adapters.follow(parts.store, AdapterSigners.of(self._secret))
        await parts.jobs.open()  # before the worker registers: jobs cannot be added to a missing stream
        await parts.heartbeat.beat()

    async def _work(self, parts: "_Parts", tasks: Tasks) -> None:
        """Registers the worker, and starts the tasks that serve requests."""
        life = self._life
        outage = Outage(log, "the worker waits to register")
        await until_answered(partial(self._register, parts), outage, self._status.report)
        self.registered = True
        self._status.ready(parts.address)
        blocks = life.status.load.blocks_total
        log.info("ready: %s worker %s at %s, %d KV blocks", self._record.role, life.epoch, parts.address, blocks)
        for task in (
            parts.connections.run(parts.intake.take),
            parts.connections.send(),
            parts.connections.tell_keys(),
            parts.intake.run(),
            parts.intake.collect(),
            parts.transfer.run(),
            parts.heartbeat.run(),
            life.adapters.follow_for_ever(parts.store, AdapterSigners.of(self._secret)),
            self._status.beat(),
            self._watch.run(),
        ):
            tasks.start(task)


class _Parts(NamedTuple):
    """The sockets, connections and tasks of the I/O thread, in its event loop."""

    network: Network
    store: Store
    address: str  # of the socket for gateways
    transfer: Transfer
    jobs: JobQueue
    connections: GatewayConnections
    intake: Intake
    heartbeat: Heartbeat

    def handle(self, event: Any) -> None:
        """Passes an event of the engine thread to connections or transfer."""
        (self.connections if isinstance(event, ToGateway) else self.transfer).handle(event)


async def _until(last: asyncio.Task[None], tasks: Tasks) -> None:
    """Waits for `last`; other tasks may end before. Raises the first error."""
    failing = child(tasks.wait())
    try:
        await asyncio.wait({last, failing}, return_when=asyncio.FIRST_COMPLETED)
        await (last if last.done() else failing)
    finally:
        await end([failing])
