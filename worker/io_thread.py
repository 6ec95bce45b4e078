"""The I/O thread: an asyncio loop with sockets, Redis, the heartbeat, and landing KV."""

import asyncio
import logging
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

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
from infra.redis.clients import connect
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
from worker.transfer import MakeTransfer

FLUSH_SECONDS = 1.0  # at the end, for sending pending messages
CLOSE_SECONDS = 5.0  # for closing everything afterwards
log = logging.getLogger("baton.worker")


class IOThread(threading.Thread):
    """Serves one life of a worker, from its registration on. An error ends the engine thread too."""

    def __init__(
        self, life: Life, record: WorkerRecord, secret: bytes, make_transfer: MakeTransfer, device: torch.device
    ) -> None:
        """`record` lacks the addresses, which are known once the sockets are bound.

        KV lands on, and leaves from, `device`.
        """
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
        self._left = threading.Event()  # the engine thread has left its loop

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
        while not self._left.wait(CHECK_INTERVAL_S):
            self._watch.look(time.monotonic())

    def stop(self) -> None:
        """Ends the thread after pending messages were sent; called from the engine thread."""
        self._left.set()
        self._life.outbox.close()
        self.join(FLUSH_SECONDS + CLOSE_SECONDS)

    async def _serve(self) -> None:
        async with AsyncExitStack() as made:
            await self._work(made)

    async def _work(self, made: AsyncExitStack) -> None:
        life, config = self._life, self._life.config
        network = Network.of(self._secret, life.bind)
        made.push_async_callback(network.destroy)
        store = connect(config.store.redis)
        made.push_async_callback(store.aclose)
        socket, address = token_router(network.context, network.bind, network.keys)
        made.callback(socket.close, 0)
        network.gatekeeper.watch(socket)
        transfer = self._make_transfer(network, life.inbox.post)
        made.push_async_callback(transfer.close)
        jobs = JobQueue(store, Sealer(self._secret, JOB_PURPOSE), life.epoch)
        connections = GatewayConnections(life, socket, transfer)
        intake = Intake(life, jobs, connections, transfer)
        record = structs.replace(
            self._record,
            address=address,
            handoff_address=transfer.handoff_address,
        )
        heartbeat = Heartbeat(life, record, store, Signer(self._secret, RECORDS), jobs, connections, transfer)
        signers = AdapterSigners.of(self._secret)

        def handle(event: Any) -> None:
            """Passes an event of the engine thread to connections or transfer."""
            (connections if isinstance(event, ToGateway) else transfer).handle(event)

        async def register() -> None:
            """Registers the worker. Raises `StoreUnavailable`; may be called again."""
            await life.clock.sync(store)
            await life.adapters.follow(store, signers)
            await jobs.open()  # before the worker registers: jobs cannot be added to a missing stream
            await heartbeat.beat()

        async def work() -> None:
            await until_answered(register, Outage(log, "the worker waits to register"), self._status.report)
            self.registered = True
            self._status.ready(address)
            blocks = life.status.load.blocks_total
            log.info("ready: %s worker %s at %s, %d KV blocks", record.role, life.epoch, address, blocks)
            for task in (
                connections.run(intake.take),
                connections.send(),
                connections.tell_keys(),
                intake.run(),
                intake.collect(),
                transfer.run(),
                heartbeat.run(),
                life.adapters.follow_for_ever(store, signers),
                self._status.beat(),
                self._watch.run(),
            ):
                tasks.start(task)

        tasks = Tasks("the I/O thread")
        made.push_async_callback(tasks.close)
        delivering = tasks.start(life.outbox.deliver(handle))
        tasks.start(network.gatekeeper.tasks.wait())
        tasks.start(work())
        await _until(delivering, tasks)
        intake.leave()
        await connections.send_all(FLUSH_SECONDS)
        if self.registered:
            await heartbeat.stop()


async def _until(last: asyncio.Task[None], tasks: Tasks) -> None:
    """Waits for `last`; other tasks may end before. Raises the first error."""
    failing = child(tasks.wait())
    try:
        await asyncio.wait({last, failing}, return_when=asyncio.FIRST_COMPLETED)
        await (last if last.done() else failing)
    finally:
        await end([failing])
