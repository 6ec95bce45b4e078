"""Finds workers in Redis, connects to them, watches their health, and drops them when they are dead."""

import asyncio
import logging
import time

import zmq.asyncio

from core.curve_keys import CurveKeys
from core.errors import StoreUnavailable
from core.records import WorkerRecord
from core.registry import listed
from core.store import Outage, ServerClock, Store
from gateway.workers.connection import WorkerConnection, WorkerListener
from gateway.workers.directory import WorkerDirectory
from gateway.workers.liveness import Health

POLL_EVERY = 0.5  # s between looks into the registry
LOOK_EVERY = 0.05  # s between looks at the workers' health
SYNC_EVERY = 10.0  # s between measurements of the server's clock
BURIED_SECONDS = 10.0  # s for which a dead life is not connected to again
log = logging.getLogger("baton.gateway")


def short_name(model: str) -> str:
    """Returns the last part of a directory or a hub id: hosts may keep the same model in different places."""
    return model.rstrip("/").rpartition("/")[2]


class Discovery:
    """Keeps `directory` true to the registry and to the workers' answers; `listener` hears what the workers say."""

    def __init__(
        self,
        store: Store,
        clock: ServerClock,
        epoch: str,
        model: str,
        keys: CurveKeys,
        directory: WorkerDirectory,
        listener: WorkerListener,
    ) -> None:
        self._store = store
        self._clock = clock
        self._epoch = epoch
        self._model = short_name(model)
        self._keys = keys
        self._directory = directory
        self._listener = listener
        self._context = zmq.asyncio.Context(io_threads=1)
        self._buried: dict[str, float] = {}  # dead lives by epoch, with the local time until which they stay buried, s
        self._misfits: set[str] = set()  # epochs of workers with another model, each named once in the log
        self._synced = 0.0  # local time of the clock's last measurement, s
        self._closing: set[asyncio.Task[None]] = set()
        self.outage = Outage(log, "workers are neither found nor dropped")  # nobody is dead because Redis is away

    async def run(self) -> None:
        """Polls and watches until cancelled."""
        await asyncio.gather(self._poll_for_ever(), self._look_for_ever())

    async def close(self) -> None:
        """Closes the connections to all workers."""
        for connection in self._directory:
            self._drop(connection)
        await asyncio.gather(*self._closing)
        self._context.term()

    async def poll(self) -> None:
        """Looks into the registry once. Raises `StoreUnavailable`."""
        if time.monotonic() - self._synced > SYNC_EVERY or not self._synced:
            await self._clock.sync(self._store)
            self._synced = time.monotonic()
        records = await listed(self._store, WorkerRecord)
        self._update({record.epoch: record for record in records if self._fits(record)})

    def look(self) -> None:
        """Looks at every worker's health once, and buries the dead."""
        now = time.monotonic()
        for worker in self._directory:
            worker.look(now)
            if worker.liveness.health is Health.DEAD:
                log.warning("%s worker %s is dead", worker.record.role, worker.epoch)
                self._buried[worker.epoch] = now + BURIED_SECONDS
                self._drop(worker)
                self._listener.died(worker)

    async def _poll_for_ever(self) -> None:
        while True:
            try:
                await self.poll()
                self.outage.ends()
            except StoreUnavailable as error:
                self.outage.begins(error)
            await asyncio.sleep(POLL_EVERY)

    async def _look_for_ever(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY)

    def _update(self, records: dict[str, WorkerRecord]) -> None:
        now = time.monotonic()
        self._buried = {epoch: until for epoch, until in self._buried.items() if until > now}
        for epoch, record in records.items():
            known = self._directory.get(epoch)
            if known is not None:
                known.renew(record)
            elif epoch not in self._buried:
                log.info("found %s worker %s at %s", record.role, epoch, record.address)
                self._directory.add(WorkerConnection(self._context, self._keys, self._epoch, record, self._listener))
        for worker in self._directory:
            worker.liveness.beating = worker.epoch in records

    def _fits(self, record: WorkerRecord) -> bool:
        if short_name(record.model) == self._model:
            return True
        if record.epoch not in self._misfits:
            self._misfits.add(record.epoch)
            log.warning("worker %s serves %r and not %r; it is not used", record.epoch, record.model, self._model)
        return False

    def _drop(self, worker: WorkerConnection) -> None:
        self._directory.remove(worker)
        closing = asyncio.create_task(worker.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
