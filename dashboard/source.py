"""Reads what Redis knows, for all open pages: on demand, at most once a second, and only what is new."""

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
from infra.redis.records import FinishedRecord, GatewayRecord, Role, StatsSample, WorkerLoad, WorkerRecord
from infra.redis.registry import FINISHED_KEY, MAX_FINISHED, STATS_KEY, TTL_MS, index_key, read_unchecked, record_key

FRESH = 0.8  # s that a reading serves all pages
SILENT_AFTER = 3.0  # s without a heartbeat
FORGOTTEN_AFTER = 60.0  # s until a worker that fell silent leaves the page
HISTORY = 2_000  # load samples read at the start
PAGE = 2_000  # entries per read
PAGES = 10  # reads per turn and stream
PER_WORKER = 600  # load samples kept of one life

WorkerState = Literal["ready", "draining", "silent"]
T = TypeVar("T", bound=Struct)
R = TypeVar("R", WorkerRecord, GatewayRecord)


class WorkerView(Struct, frozen=True):
    """Describes a worker as its heartbeats show it."""

    epoch: str
    role: Role
    load: WorkerLoad
    state: WorkerState
    beat_age: float  # s since its last heartbeat
    record: WorkerRecord | None  # None if it fell silent before anybody looked


class Snapshot(Struct, frozen=True):
    """Holds one reading. `now` is the server's time, s; records are in the order of their ends."""

    now: float
    workers: Sequence[WorkerView]
    gateways: Sequence[GatewayRecord]
    finished: Sequence[FinishedRecord]
    samples: dict[str, Sequence[StatsSample]]


class Source:
    """Reads workers, gateways, finished requests and load samples. Safe for the threads of several pages."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connected: redis.Redis | None = None
        with suppress(StoreUnavailable):  # a cluster's client asks for its nodes as it is made
            self._connected = connect_blocking(url)
        self._lock = threading.Lock()
        self._read_at = -FRESH
        self._latest: Snapshot | StoreUnavailable = StoreUnavailable("not read yet")
        self._known: dict[str, WorkerRecord] = {}
        self._finished: deque[FinishedRecord] = deque(maxlen=MAX_FINISHED)
        self._samples: dict[str, deque[StatsSample]] = {}
        self._after: dict[str, bytes] = {}  # id of the last entry read, by stream

    def read(self) -> Snapshot:
        """Returns the present state. Raises `StoreUnavailable` in one sentence while Redis is away; ask again later."""
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH:
                self._latest = self._fetch()
                self._read_at = time.monotonic()  # also after a failure, so that a dead server is asked once a second
            if isinstance(self._latest, StoreUnavailable):
                raise StoreUnavailable(str(self._latest))
            return self._latest

    def find(self, request: str) -> FinishedRecord | None:
        """Finds the record of a request that ended; None while it has none. Raises `StoreUnavailable`."""
        found = (record for record in reversed(self.read().finished) if record.request == request)
        return next(found, None)

    def close(self) -> None:
        """Gives the connections back."""
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
            self._sort_samples(self._new(STATS_KEY, StatsSample, HISTORY), now)
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
        )

    def _server_time(self) -> float:
        answer: Any = self._client.time()
        return float(answer[0]) + float(answer[1]) / 1e6

    def _index(self, kind: str) -> dict[str, float]:
        """Reads the expiry of records in seconds of server time, by epoch."""
        members: Any = self._client.zrange(index_key(kind), 0, -1, withscores=True)
        return {epoch.decode(): float(expiry) / 1000 for epoch, expiry in members}

    def _records(self, record: type[R], kind: str, epochs: dict[str, float]) -> dict[str, R]:
        if not epochs:
            return {}
        bodies: Any = self._client.mget([record_key(kind, epoch) for epoch in epochs])
        read = {
            epoch: read_unchecked(body, record) for epoch, body in zip(epochs, bodies, strict=True) if body is not None
        }
        return {epoch: found for epoch, found in read.items() if found is not None}

    def _workers(self, now: float) -> list[WorkerView]:
        """Reads the workers with a heartbeat, and those that lost it a moment ago, as they were last seen."""
        expiries = self._index("worker")
        self._known.update(self._records(WorkerRecord, "worker", expiries))
        self._known = {epoch: record for epoch, record in self._known.items() if epoch in expiries}
        beats = {epoch: now - (expiry - TTL_MS / 1000) for epoch, expiry in expiries.items()}
        seen = (self._view(epoch, max(0.0, age)) for epoch, age in beats.items() if age < FORGOTTEN_AFTER)
        views = [view for view in seen if view is not None]
        return sorted(views, key=lambda view: (view.role != "prefill", view.epoch))

    def _view(self, epoch: str, beat_age: float) -> WorkerView | None:
        record, samples = self._known.get(epoch), self._samples.get(epoch)
        if record is None:
            if not samples:
                return None
            return WorkerView(epoch, samples[-1].role, samples[-1].load, "silent", beat_age, None)
        state: WorkerState = "draining" if record.draining else "ready"
        if beat_age > SILENT_AFTER:
            state = "silent"
        return WorkerView(epoch, record.role, record.load, state, beat_age, record)

    def _new(self, stream: str, record: type[T], history: int) -> list[T]:
        """Reads the entries since the last turn, oldest first; at the first turn the last `history`."""
        entries: list[Any] = []
        if stream not in self._after:
            newest: Any = self._client.xrevrange(stream, count=history)
            entries = newest[::-1]
        else:
            after = self._after[stream]
            for _ in range(PAGES):
                page: Any = self._client.xrange(stream, min=b"(" + after, count=PAGE)
                entries += page
                if len(page) < PAGE:
                    break
                after = page[-1][0]
        if entries:
            self._after[stream] = entries[-1][0]
        return [found for _, fields in entries if (found := _decoded(fields.get(b"json", b""), record)) is not None]

    def _sort_samples(self, samples: list[StatsSample], now: float) -> None:
        for sample in samples:
            self._samples.setdefault(sample.epoch, deque(maxlen=PER_WORKER)).append(sample)
        self._samples = {epoch: kept for epoch, kept in self._samples.items() if now - kept[-1].at < FORGOTTEN_AFTER}


def _decoded(body: bytes, record: type[T]) -> T | None:
    """Reads a record; None where another version of Baton wrote something else: the page shows what it can read."""
    try:
        return msgspec.json.decode(body, type=record)
    except msgspec.DecodeError:
        return None
