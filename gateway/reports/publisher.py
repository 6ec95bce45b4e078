"""Figures of requests for Redis: who is in progress, each second, and every request that ended, soon after."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

import redis

from core.records import FinishedRecord, GatewayRecord
from core.registry import BEAT, add_finished, publish, withdraw
from core.store import ServerClock, Store

WAITING = 10_000  # records of ended requests that wait while Redis is away; the oldest go first
BATCH = 256
FLUSH_EVERY = 0.1  # s
STORE_SECONDS = 3.0
log = logging.getLogger("baton.gateway")


class Publisher:
    """Writes this gateway's records. While Redis is away it keeps the newest."""

    def __init__(self, store: Store, clock: ServerClock, record: Callable[[], GatewayRecord]) -> None:
        self._store = store
        self._clock = clock
        self._record = record
        self._ended: deque[FinishedRecord] = deque(maxlen=WAITING)

    def ended(self, record: FinishedRecord) -> None:
        """A request has ended."""
        self._ended.append(record)

    async def run(self) -> None:
        """Publishes until cancelled."""
        beat = 0.0
        while True:
            try:
                if time.monotonic() - beat >= BEAT:
                    async with asyncio.timeout(STORE_SECONDS):
                        await publish(self._store, self._record(), self._clock.now())
                    beat = time.monotonic()
                await self.flush()
            except (redis.RedisError, OSError, TimeoutError) as error:
                log.debug("figures wait, Redis is away: %s", error)
                await asyncio.sleep(BEAT)
            await asyncio.sleep(FLUSH_EVERY)

    async def flush(self) -> None:
        """Writes what has ended."""
        while self._ended:
            batch = [self._ended[place] for place in range(min(BATCH, len(self._ended)))]
            async with asyncio.timeout(STORE_SECONDS):
                await add_finished(self._store, batch)
            for record in batch:
                if self._ended and self._ended[0] is record:
                    self._ended.popleft()

    async def close(self) -> None:
        """The last figures, and the end of this gateway's record."""
        try:
            await self.flush()
            async with asyncio.timeout(STORE_SECONDS):
                await withdraw(self._store, self._record())
        except (redis.RedisError, OSError, TimeoutError) as error:
            log.warning("left without deregistering, Redis is away: %s", error)
