"""A worker's heartbeat: its record in Redis, load samples, and regular checks."""

import asyncio
import logging

from msgspec import structs

from contracts.errors import StoreUnavailable
from infra.network.sealing import Signer
from infra.redis.clients import Store
from infra.redis.queue import JobQueue
from infra.redis.records import HEARTBEAT_S, StatsSample, WorkerRecord
from infra.redis.registry import add_stats, publish, withdraw
from infra.redis.store import Outage
from worker.gateways.connections import GatewayConnections
from worker.life import Life
from worker.transfer import Transfer

log = logging.getLogger("baton.worker")


class Heartbeat:
    """Renews this worker's record once a second."""

    def __init__(
        self,
        life: Life,
        record: WorkerRecord,
        store: Store,
        signer: Signer,
        jobs: JobQueue,
        connections: GatewayConnections,
        transfer: Transfer,
    ) -> None:
        """`record`: the constant part of the record."""
        self._life = life
        self._record = record
        self._store = store
        self._signer = signer
        self._jobs = jobs
        self._connections = connections
        self._transfer = transfer

    async def run(self) -> None:
        """Renews the record for ever. An outage of Redis is logged, and does not end it."""
        outage = Outage(log, "no heartbeat until it is back")
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._connections.watch()
            self._life.busy.sweep()
            if self._life.status.draining:
                self._transfer.drain()
            try:
                await self.beat()
                outage.ends()
            except StoreUnavailable as error:
                outage.begins(error)

    async def beat(self) -> None:
        """Renews the record, the job stream's expiry, and the clock offset. Raises `StoreUnavailable`."""
        life = self._life
        await life.clock.sync(self._store)
        await self._jobs.refresh()
        now = life.clock.server_now()  # the record describes this time or a later one
        counts = self._transfer.counts()
        dropped = self._jobs.dropped + self._connections.dropped + sum(counts.dropped.values())
        load = structs.replace(life.status.load, dropped=dropped, handoff=counts, backlog=life.status.backlog())
        record = structs.replace(
            self._record,
            draining=life.status.draining,
            load=load,
            links=self._transfer.links(),
            unreached=self._transfer.unreached(),
            adapter_list=life.adapters.number,  # before `record()`, which may be newer
            adapters=life.adapters.record(),
        )
        await publish(self._store, self._signer, record, now)
        await add_stats(self._store, StatsSample(now, record.epoch, record.role, load))

    async def stop(self) -> None:
        """Removes the record and the job stream, so that others need not wait for their expiry."""
        try:
            await withdraw(self._store, self._record)
            await self._jobs.close()
        except StoreUnavailable as error:
            log.warning("left without deregistering: %s", error)
