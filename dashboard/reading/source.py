"""Reads records from Redis for all open pages: on demand, at most once a second, and only new entries."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec
import redis
from msgspec import Struct
from redis.exceptions import RedisClusterException

from contracts.errors import StoreUnavailable
from infra.redis.clients import connect_blocking, redacted
from infra.redis.records import FinishedRecord, GatewayRecord, IntervalRecord, Role, RunMark, StatsSample, WorkerRecord
from infra.redis.registry import (
    FINISHED_KEY,
    INTERVALS_KEY,
    MAX_FINISHED,
    MAX_INTERVALS,
    MAX_RUN_MARKS,
    RUN_MARKS_KEY,
    STATS_KEY,
    TTL_MS,
    index_key,
    read_unchecked,
    record_key,
)
from infra.redis.worker_load import WorkerLoad

CACHE_S = 0.8  # a reading serves all pages for this time
MAX_BEAT_AGE_S = 3.0  # of a worker's heartbeat, before the worker counts as silent
FORGET_AFTER_S = 60.0  # age of the heartbeat at which a worker leaves the page
FIRST_READ_SAMPLES = 2_000
ENTRIES_PER_READ = 2_000
MAX_READS = 10  # per refresh and stream
MAX_SAMPLES_PER_WORKER = 600  # load samples of one epoch

WorkerState = Literal["ready", "draining", "silent"]
Record = TypeVar("Record", bound=Struct)
Registered = TypeVar("Registered", WorkerRecord, GatewayRecord)


class WorkerView(Struct, frozen=True):
    """A worker, as its heartbeats show it."""

    epoch: str
    role: Role
    load: WorkerLoad
    state: WorkerState
    beat_age: float  # seconds since the last heartbeat
    record: WorkerRecord | None  # None if the worker was silent before the first reading


class Snapshot(Struct, frozen=True):
    """One reading. `now`: the server's time, in seconds; records are in the order of their ends."""

    now: float
    workers: Sequence[WorkerView]
    gateways: Sequence[GatewayRecord]
    finished: Sequence[FinishedRecord]
    samples: dict[str, Sequence[StatsSample]]
    intervals: Sequence[IntervalRecord] = ()  # the gateways' history, in the order of their writing
    marks: Sequence[RunMark] = ()  # of load generators' runs, in the order of their writing


class Source:
    """Reads workers, gateways, finished requests and load samples. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connected: redis.Redis | None = None
        with suppress(StoreUnavailable):  # a cluster's client connects when it is made
            self._connected = connect_blocking(url)
        self._lock = threading.Lock()
        self._read_at = -CACHE_S
        self._latest: Snapshot | StoreUnavailable = StoreUnavailable("not read yet")
        self._known: dict[str, WorkerRecord] = {}
        self._finished: deque[FinishedRecord] = deque(maxlen=MAX_FINISHED)
        self._intervals: deque[IntervalRecord] = deque(maxlen=MAX_INTERVALS)
        self._marks: deque[RunMark] = deque(maxlen=MAX_RUN_MARKS)
        self._samples: dict[str, deque[StatsSample]] = {}
        self._after: dict[str, bytes] = {}  # stream → id of the last entry read

    def read(self) -> Snapshot:
        """Returns the current reading. Raises `StoreUnavailable` while Redis does not answer; call again later."""
        with self._lock:
            if time.monotonic() - self._read_at >= CACHE_S:
                self._latest = self._fetch()
                self._read_at = time.monotonic()  # also after a failure: a dead server is asked once a second
            if isinstance(self._latest, StoreUnavailable):
                raise StoreUnavailable(str(self._latest))
            return self._latest

    def find(self, request: str) -> FinishedRecord | None:
        """Returns the record of an ended request, or None. Raises `StoreUnavailable`."""
        found = (record for record in reversed(self.read().finished) if record.request == request)
        return next(found, None)

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()

    @property
    def _client(self) -> redis.Redis:
        if self._connected is None:
            self._connected = connect_blocking(self._url)
        return self._connected

    def _fetch(self) -> Snapshot | StoreUnavailable:
        try:
            now = self._server_time()
            self._finished.extend(self._new(FINISHED_KEY, FinishedRecord, MAX_FINISHED))
            self._intervals.extend(self._new(INTERVALS_KEY, IntervalRecord, MAX_INTERVALS))
            self._marks.extend(self._new(RUN_MARKS_KEY, RunMark, MAX_RUN_MARKS))
            self._sort_samples(self._new(STATS_KEY, StatsSample, FIRST_READ_SAMPLES), now)
            workers = self._workers(now)
            gateways = self._records(GatewayRecord, "gateway", self._index("gateway"))
        except (redis.RedisError, RedisClusterException, StoreUnavailable, OSError):
            return StoreUnavailable(f"Redis at {redacted(self._url)} does not answer; this page goes on asking.")
        return Snapshot(
            now,
            workers,
            list(gateways.values()),
            tuple(self._finished),
            {epoch: tuple(kept) for epoch, kept in self._samples.items()},
            tuple(self._intervals),
            tuple(self._marks),
        )

    def _server_time(self) -> float:
        answer: Any = self._client.time()
        return float(answer[0]) + float(answer[1]) / 1e6

    def _index(self, kind: str) -> dict[str, float]:
        """Returns epoch → expiry of the record, in seconds of server time."""
        members: Any = self._client.zrange(index_key(kind), 0, -1, withscores=True)
        return {epoch.decode(): float(expiry) / 1000 for epoch, expiry in members}

    def _records(self, record: type[Registered], kind: str, epochs: dict[str, float]) -> dict[str, Registered]:
        if not epochs:
            return {}
        bodies: Any = self._client.mget([record_key(kind, epoch) for epoch in epochs])
        read = {
            epoch: read_unchecked(body, record) for epoch, body in zip(epochs, bodies, strict=True) if body is not None
        }
        return {epoch: found for epoch, found in read.items() if found is not None}

    def _workers(self, now: float) -> list[WorkerView]:
        """Reads workers with a heartbeat; recently silent workers keep their last record."""
        expiries = self._index("worker")
        self._known.update(self._records(WorkerRecord, "worker", expiries))
        self._known = {epoch: record for epoch, record in self._known.items() if epoch in expiries}
        beats = {epoch: now - (expiry - TTL_MS / 1000) for epoch, expiry in expiries.items()}
        seen = (self._view(epoch, max(0.0, age)) for epoch, age in beats.items() if age < FORGET_AFTER_S)
        views = [view for view in seen if view is not None]
        return sorted(views, key=lambda view: (view.role != "prefill", view.epoch))

    def _view(self, epoch: str, beat_age: float) -> WorkerView | None:
        record, samples = self._known.get(epoch), self._samples.get(epoch)
        if record is None:
            if not samples:
                return None
            return WorkerView(epoch, samples[-1].role, samples[-1].load, "silent", beat_age, None)
        state: WorkerState = "draining" if record.draining else "ready"
        if beat_age > MAX_BEAT_AGE_S:
            state = "silent"
        return WorkerView(epoch, record.role, record.load, state, beat_age, record)

    def _new(self, stream: str, record: type[Record], history: int) -> list[Record]:
        entries: list[Any] = []
        if stream not in self._after:
            newest: Any = self._client.xrevrange(stream, count=history)
            entries = newest[::-1]
        else:
            after = self._after[stream]
            for _ in range(MAX_READS):
                page: Any = self._client.xrange(stream, min=b"(" + after, count=ENTRIES_PER_READ)
                entries += page
                if len(page) < ENTRIES_PER_READ:
                    break
                after = page[-1][0]
        if entries:
            self._after[stream] = entries[-1][0]
        return [found for _, fields in entries if (found := _decoded(fields.get(b"json", b""), record)) is not None]

    def _sort_samples(self, samples: list[StatsSample], now: float) -> None:
        for sample in samples:
            self._samples.setdefault(sample.epoch, deque(maxlen=MAX_SAMPLES_PER_WORKER)).append(sample)
        self._samples = {epoch: kept for epoch, kept in self._samples.items() if now - kept[-1].at < FORGET_AFTER_S}


def _decoded(body: bytes, record: type[Record]) -> Record | None:
    """Decodes a record; None for a record of another version of Baton, which the page leaves out."""
    try:
        return msgspec.json.decode(body, type=record)
    except msgspec.DecodeError:
        return None
