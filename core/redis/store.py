"""Asks Redis: one place for what is said and raised when Redis is away, and for its clock.

Nothing outside `core` catches what the Redis client raises: whatever asks Redis in here raises `StoreUnavailable`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis

from core.errors import StoreUnavailable
from core.redis.clients import Store, redacted
from core.redis.clock_offset import ClockOffset

PREFIX = "baton:"
STORE_SECONDS = 3.0  # s that one question to Redis may take in all, retries included
SLOW = 0.1  # s; a round trip this long says too little about the server's clock
OLDEST = (6, 2)  # the first version with XADD NOMKSTREAM


@asynccontextmanager
async def answered(seconds: float = STORE_SECONDS) -> AsyncIterator[None]:
    """Allows what asks Redis inside `seconds` in all. Raises `StoreUnavailable` where no answer, or an error, came."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable(f"Redis is away: {str(error) or type(error).__name__}") from error


class Outage:
    """Says in the log that Redis is away once for each time that it is, and once that it is back."""

    def __init__(self, log: logging.Logger, meanwhile: str) -> None:
        """Begins with Redis there. `meanwhile` says what does not happen while it is away, as part of a sentence."""
        self._log = log
        self._meanwhile = meanwhile
        self.lasts = False

    def begins(self, error: StoreUnavailable) -> None:
        """Notes that Redis did not answer, now or still."""
        if not self.lasts:
            self._log.warning("%s; %s", error, self._meanwhile)
        self.lasts = True

    def ends(self) -> None:
        """Notes that Redis has answered."""
        if self.lasts:
            self._log.warning("Redis is back")
        self.lasts = False


async def check(store: Store, url: str) -> None:
    """Raises `StoreUnavailable` in one sentence if the server does not answer or is too old."""
    try:
        info = await store.info("server")
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(f"--redis: {redacted(url)!r}: no answer from a Redis server ({error})") from None
    version = str(info.get("redis_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreUnavailable(f"--redis: {redacted(url)!r}: server version {version} is older than 6.2")


class ServerClock:
    """Tells the Redis server's time, in which what is written to Redis is dated, and a count of it that never jumps.

    `now` is that count, for everything in this process: it begins with the server's time and goes on with the local
    monotonic clock, whatever becomes of the server's. What comes from Redis is brought over by `taken_over`.
    """

    def __init__(self) -> None:
        self._first = time.time() - time.monotonic()  # s, the offset that `now` counts with
        self._offset: ClockOffset | None = None  # None until it was measured

    @answered()
    async def sync(self, store: Store) -> None:
        """Measures the offset. Half of the round trip is its error, so only the first answer counts even if it is slow.

        Raises `StoreUnavailable`.
        """
        before = time.monotonic()
        seconds, microseconds = await store.time()
        after = time.monotonic()
        offset = seconds + microseconds / 1e6 - (before + after) / 2
        if self._offset is None:
            self._first, self._offset = offset, ClockOffset(offset)
        elif after - before < SLOW:
            self._offset.measured(offset, after)

    def now(self) -> float:
        """Returns this process's count of the server's seconds since 1970: one that no setting of a clock moves."""
        return time.monotonic() + self._first

    def server_now(self) -> float:
        """Returns the server's seconds since 1970, for what others read."""
        return time.monotonic() + (self._offset.believed if self._offset is not None else self._first)

    def taken_over(self, since: float, deadline: float) -> tuple[float, float]:
        """Converts two moments that another process dated, in the server's time, into our count.

        Where the server's clock was set between their dating and now, it is not known how long ago `since` was. Then it
        counts as now, and the deadline is as far from it as the other process said.
        """
        behind = self._first - (self._offset.believed if self._offset is not None else self._first)
        if not since <= self.server_now() < deadline:
            behind = self.now() - since
        return since + behind, deadline + behind

    def local(self, at: float) -> float:
        """Converts a moment of our count (s) into one of `time.monotonic`."""
        return at - self._first

    def remaining_ms(self, deadline: float) -> float:
        """Returns the ms until `deadline` (our count, s), negative when it has passed."""
        return (deadline - self.now()) * 1000
