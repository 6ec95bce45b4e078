"""Writes the gateway's records to Redis: requests in progress each second, and ended requests soon after.

The write every second shows whether jobs can be written as well: a full server, or a replica, still answers reads.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from contracts.errors import StoreRefused, StoreUnavailable
from gateway.reports.intervals import IntervalSums
from infra.network.sealing import Signer
from infra.process.ticking import next_tick
from infra.redis.clients import Store
from infra.redis.records import HEARTBEAT_S, FinishedRecord, GatewayRecord, IntervalRecord, RunMark
from infra.redis.registry import add_finished, add_interval, add_run_mark, publish, withdraw
from infra.redis.store import Outage, ServerClock, answered

MAX_WAITING_RECORDS = 10_000  # records of ended requests kept while Redis is away; the oldest are dropped first
MAX_WAITING_INTERVALS = 120  # an hour
MAX_WAITING_MARKS = 64  # of runs of loads
MAX_RECORDS_PER_WRITE = 256  # records in one write
FLUSH_INTERVAL_S = 0.1  # s
MAX_HEARTBEAT_WRITE_S = 1.0  # s; a heartbeat that takes longer means that jobs cannot be written
RETRY_PAUSE_S = 0.5  # s between two heartbeats while Redis takes no writes
NO_WRITES = "Redis takes no writes"
log = logging.getLogger("baton.gateway")


class Publisher:
    """Writes this gateway's records. While Redis is away it keeps the newest."""

    def __init__(self, store: Store, signer: Signer, clock: ServerClock, epoch: str) -> None:
        self._store = store
        self._signer = signer
        self._clock = clock
        self._ended: deque[FinishedRecord] = deque(maxlen=MAX_WAITING_RECORDS)
        self.sums = IntervalSums(epoch)
        self._outage = Outage(log, "requests are refused until it takes writes")
        self._intervals: deque[IntervalRecord] = deque(maxlen=MAX_WAITING_INTERVALS)
        self._marks: deque[RunMark] = deque(maxlen=MAX_WAITING_MARKS)
        self.objection = ""  # why Redis accepts no writes now, as a sentence for callers; empty: it accepts them

    def ended(self, record: FinishedRecord) -> None:
        self._ended.append(record)
        self.sums.ended(record)

    def interval(self, interval: IntervalRecord) -> None:
        self._intervals.append(interval)

    def mark(self, mark: RunMark) -> None:
        self._marks.append(mark)

    async def run(self, current: Callable[[], Awaitable[GatewayRecord]]) -> None:
        """Publishes until cancelled; `current` returns the gateway's own record."""
        beat = 0.0
        while True:
            try:
                if time.monotonic() - beat >= HEARTBEAT_S:
                    record = await current()
                    async with answered(MAX_HEARTBEAT_WRITE_S):
                        await publish(self._store, self._signer, record, self._clock.server_now())
                    beat = time.monotonic()
                    self.objection = ""
                    self._outage.ends()
                await self.flush()
            except StoreUnavailable as error:
                self.objection = "Redis refuses this gateway" if isinstance(error, StoreRefused) else NO_WRITES
                self._outage.begins(error)
                beat = 0.0  # the next write is a heartbeat again
                await asyncio.sleep(RETRY_PAUSE_S)
            await next_tick(FLUSH_INTERVAL_S)

    async def flush(self) -> None:
        """Writes the records of ended requests, intervals and marks. Raises `StoreUnavailable`."""
        while self._marks:
            await add_run_mark(self._store, self._marks[0])
            self._marks.popleft()
        while self._intervals:
            await add_interval(self._store, self._intervals[0])
            self._intervals.popleft()
        while self._ended:
            batch = [self._ended[place] for place in range(min(MAX_RECORDS_PER_WRITE, len(self._ended)))]
            await add_finished(self._store, batch)
            for record in batch:
                if self._ended and self._ended[0] is record:
                    self._ended.popleft()

    async def close(self, last: GatewayRecord) -> None:
        """Writes the last records, and removes the gateway's record."""
        try:
            await self.flush()
            await withdraw(self._store, last)
        except StoreUnavailable as error:
            log.warning("left without deregistering: %s", error)
