"""Finds workers in Redis, connects to them, watches their health, and drops them when they are dead."""

import asyncio
import logging
import random
import time
from collections import OrderedDict

import zmq
import zmq.asyncio

from contracts.errors import StoreUnavailable
from contracts.kv.spec import QUANTIZED_DTYPES
from contracts.messages.wire import VERSION
from gateway.workers.connection import WorkerConnection, WorkerListener
from gateway.workers.directory import WorkerDirectory
from gateway.workers.liveness import WorkerHealth
from gateway.workers.misfits import misfits
from gateway.workers.unreached import UnreachedPair, UnreachedPairs
from infra.network.curve_keys import CurveKeys
from infra.network.sealing import Signer
from infra.process.tasks import Tasks
from infra.process.ticking import next_tick
from infra.redis.clients import Store
from infra.redis.records import WorkerRecord
from infra.redis.registry import listed
from infra.redis.store import Outage, ServerClock

POLL_INTERVAL_S = 0.5  # s between reads of the registry
LOOK_INTERVAL_S = 0.05  # s between checks of the workers' health
SYNC_INTERVAL_S = 10.0  # s between measurements of the server's clock
MAX_BURIED_S = 10.0  # s for which a life that hangs, or is unreachable, is not connected to again
FIRST_SILENT_S = 1.0  # s for a life that was silent or cut off once; doubled each time, up to MAX_BURIED_S
MAX_FOREIGN_S = 30.0  # s, at most, for which a life of another protocol version is not connected to again
UNREACHED_AFTER_S = 10.0  # s without a first answer, after which a life counts as unreachable
MAX_REMEMBERED_LIVES = 4096  # lives whose last heartbeat is remembered
MAX_LOGGED_NAMES = 1024  # names that the log mentions, each once
log = logging.getLogger("baton.gateway")


def short_name(model: str) -> str:
    """Returns the last part of a directory or a hub id: hosts may keep a model in different directories."""
    return model.rstrip("/").rpartition("/")[2]


class Discovery:
    """Keeps `directory` in step with the registry and the workers' health; `listener` gets the workers' messages."""

    def __init__(
        self,
        store: Store,
        signer: Signer,
        clock: ServerClock,
        epoch: str,
        model: str,
        keys: CurveKeys,
        directory: WorkerDirectory[WorkerConnection],
        listener: WorkerListener,
    ) -> None:
        self._store = store
        self._signer = signer
        self._clock = clock
        self._epoch = epoch
        self._model = short_name(model)
        self._keys = keys
        self._directory = directory
        self._listener = listener
        self._context = zmq.asyncio.Context(io_threads=1)
        self._buried: dict[str, float] = {}  # dead lives by epoch, with the local time until which they stay buried, s
        self._silences: dict[str, int] = {}  # how many times lives that have a record were dead by silence, by epoch
        self._foreign: dict[str, int] = {}  # how many times lives that have a record spoke another version, by epoch
        self._beats: OrderedDict[str, int] = OrderedDict()  # number of the last heartbeat seen, by epoch
        self._named: set[str] = set()  # what the log has named once: workers with another model, unsigned records
        self._synced = 0.0  # local time of the clock's last measurement, s
        self._missed: dict[str, WorkerRecord] = {}  # workers that this gateway cannot connect to, by epoch
        self._unreached = UnreachedPairs(epoch)
        self._tasks = Tasks("finding workers")
        # while Redis is away no worker counts as dead
        self.outage = Outage(log, "workers are neither found nor dropped")

    @property
    def unreached(self) -> tuple[UnreachedPair, ...]:
        return self._unreached.pairs

    async def run(self) -> None:
        await asyncio.gather(self._poll_for_ever(), self._look_for_ever(), self._tasks.wait())

    async def close(self) -> None:
        for connection in self._directory:
            self._drop(connection)
        await self._tasks.finished()
        self._context.term()

    async def poll(self) -> None:
        """Reads the registry once. Raises `StoreUnavailable`."""
        if time.monotonic() - self._synced > SYNC_INTERVAL_S or not self._synced:
            await self._clock.sync(self._store)
            self._synced = time.monotonic()
        found = await listed(self._store, self._signer, WorkerRecord, self._unsigned)
        there = {record.epoch for record, _ in found}
        self._missed = {epoch: record for epoch, record in self._missed.items() if epoch in there}
        self._silences = {epoch: count for epoch, count in self._silences.items() if epoch in there}
        self._foreign = {epoch: count for epoch, count in self._foreign.items() if epoch in there}
        self._update({record.epoch: record for record, beat in found if self._fits(record) and self._new(record, beat)})

    def look(self) -> None:
        """Checks every worker's health once, and drops the dead."""
        now = time.monotonic()
        for worker in self._directory:
            worker.look(now)
            seconds = MAX_BURIED_S
            if worker.liveness.health is WorkerHealth.DEAD:
                log.warning("%s worker %s is dead", worker.record.role, worker.epoch)
                if not worker.liveness.hangs:
                    seconds = self._silent_seconds(worker.epoch)
            elif worker.speaks != VERSION:
                seconds = self._foreign_seconds(worker)
            elif worker.broken:
                log.warning(
                    "%s worker %s is dropped: its connection failed in this gateway", worker.record.role, worker.epoch
                )
            elif not worker.welcomed and now - worker.since > UNREACHED_AFTER_S:
                self._missed[worker.epoch] = worker.record  # tried again while its heartbeat continues
            else:
                continue
            self._buried[worker.epoch] = now + seconds
            self._drop(worker)
            self._listener.died(worker)

    def _silent_seconds(self, epoch: str) -> float:
        """Returns the seconds for which a silent life is not connected to again.

        It may only have waited for a processor: then its heartbeat goes on, and it is used when it answers again.
        """
        self._silences[epoch] = count = self._silences.get(epoch, 0) + 1
        return min(MAX_BURIED_S, FIRST_SILENT_S * 2.0 ** (count - 1))

    def _foreign_seconds(self, worker: WorkerConnection) -> float:
        """Returns the seconds for which a life of another protocol version is not tried: growing, with jitter.

        Its version cannot change. The next life at its address has another epoch, and is tried at once.
        """
        self._foreign[worker.epoch] = count = self._foreign.get(worker.epoch, 0) + 1
        if count == 1:
            why = "%s worker %s speaks protocol version %d, this gateway %d: it is not used"
            log.error(why, worker.record.role, worker.epoch, worker.speaks, VERSION)
        return min(MAX_FOREIGN_S, 2.0 ** min(count, 16)) * random.uniform(0.5, 1.0)

    async def _poll_for_ever(self) -> None:
        while True:
            try:
                await self.poll()
                self.outage.ends()
            except StoreUnavailable as error:
                self.outage.begins(error)
            await next_tick(POLL_INTERVAL_S)

    async def _look_for_ever(self) -> None:
        while True:
            self.look()
            await next_tick(LOOK_INTERVAL_S)

    def _update(self, records: dict[str, WorkerRecord]) -> None:
        now = time.monotonic()
        self._buried = {epoch: until for epoch, until in self._buried.items() if until > now}
        for epoch, record in records.items():
            known = self._directory.get(epoch)
            if known is not None:
                known.renew(record, time.monotonic())
            elif epoch not in self._buried:
                self._connect(record, now)
        connected = list(self._directory)
        silent = [worker for worker in connected if worker.epoch not in records]
        lost = 2 * len(silent) > len(connected)  # most at once: Redis has lost their records, and they beat again soon
        for worker in connected:
            worker.liveness.beating = lost or worker.epoch in records
        usable = {worker.epoch: worker.record for worker in connected if worker.welcomed}
        self._missed = {epoch: record for epoch, record in self._missed.items() if epoch not in usable}
        for line in self._unreached.look(usable, self._missed.values()):
            log.warning("%s", line)
        for epoch, why in misfits([worker.record for worker in connected]).items():
            if self._first(f"misfit {epoch}"):
                log.warning("%s", why)

    def _connect(self, record: WorkerRecord, now: float) -> None:
        """Connects to a worker; a failure concerns no other worker."""
        try:
            connection = WorkerConnection(self._context, self._keys, self._epoch, record, self._listener)
        except zmq.ZMQError as error:  # the address is invalid, or no descriptor is left
            self._buried[record.epoch] = now + MAX_BURIED_S
            why = "%s worker %s at %r cannot be connected to: %s; it is tried again in %.0f s"
            log.warning(why, record.role, record.epoch, record.address, error, MAX_BURIED_S)
            return
        if record.epoch not in self._foreign:
            log.info("found %s worker %s at %s", record.role, record.epoch, record.address)
        self._name_misfits(record)
        self._directory.add(connection)

    def _name_misfits(self, record: WorkerRecord) -> None:
        """Logs once for each pair of KV formats that no KV passes between them."""
        for other in self._directory:
            formats = sorted((record.kv_dtype, other.record.kv_dtype))
            quantized = not QUANTIZED_DTYPES.isdisjoint(formats) and formats[0] != formats[1]
            if quantized and record.role != other.record.role and self._first(" ".join(formats)):
                why = "%s worker %s has KV in %s, %s worker %s in %s (--kv-dtype): none passes between them"
                ours = record.role, record.epoch, record.kv_dtype
                log.warning(why, *ours, other.record.role, other.epoch, other.record.kv_dtype)

    def _fits(self, record: WorkerRecord) -> bool:
        if short_name(record.model) == self._model:
            return True
        if self._first(record.epoch):
            log.warning("worker %s serves %r and not %r; it is not used", record.epoch, record.model, self._model)
        return False

    def _new(self, record: WorkerRecord, beat: int) -> bool:
        """Returns whether this is the life's latest record; an older record was replayed, and is ignored.

        A life that was dropped returns only with a newer heartbeat.
        """
        last = self._beats.get(record.epoch, -1)
        if beat < last or (beat == last and self._directory.get(record.epoch) is None):
            return False
        self._beats[record.epoch] = beat
        self._beats.move_to_end(record.epoch)
        while len(self._beats) > MAX_REMEMBERED_LIVES:
            self._beats.popitem(last=False)
        return True

    def _unsigned(self, key: str) -> None:
        if self._first(key):
            log.warning("the record at %r was not signed with our secret (--secret-file); it is not used", key)

    def _first(self, name: str) -> bool:
        """Returns whether the log mentions this name now: once each, and `MAX_LOGGED_NAMES` in all."""
        if name in self._named or len(self._named) >= MAX_LOGGED_NAMES:
            return False
        self._named.add(name)
        return True

    def _drop(self, worker: WorkerConnection) -> None:
        self._directory.remove(worker)
        self._tasks.start(worker.close())
