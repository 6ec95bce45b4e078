"""Asks Redis: one place for what is said and raised when Redis is away, and for its clock.

Nothing outside this room catches what the Redis client raises: whatever asks Redis in here raises `StoreUnavailable`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import redis
from redis.exceptions import AuthorizationError, NoPermissionError, RedisClusterException

from contracts.errors import StoreRefused, StoreUnavailable
from infra.redis.clients import Store, redacted
from infra.redis.clock_offset import ClockOffset

KEY_PREFIX = "baton:"
STORE_TIMEOUT_S = 3.0  # s that one question to Redis may take in all, retries included
SLOW_TRIP_S = 0.1  # s; a round trip this long says too little about the server's clock
RETRY_S = 0.25  # s between two questions of a start that waits for Redis
WAITING_STAGE = "waiting for Redis"
OUTAGE_LINE_S = 60.0  # s between two lines of the log that tell of one outage
MIN_REDIS_VERSION = (6, 2)  # the first version with XADD NOMKSTREAM
REFUSAL_ERRORS = (redis.AuthenticationError, AuthorizationError, NoPermissionError)
NO_DATABASE = "DB index is out of range"
NO_SENTINEL = " : <"  # behind it, redis-py shows its objects
Answer = TypeVar("Answer")


@asynccontextmanager
async def answered(seconds: float = STORE_TIMEOUT_S) -> AsyncIterator[None]:
    """Allows what asks Redis inside `seconds` in all.

    Raises `StoreUnavailable` where no answer, or an error, came; `StoreRefused` where these settings are the reason.
    A cancellation that comes inside is raised here at the latest: up to Python 3.11 `asyncio.wait_for`, under which the
    Redis client sends its commands, swallows a cancellation at the moment when the command has been sent.
    """
    task = asyncio.current_task()
    assert task is not None, "Redis is asked by a task"
    cancellations = task.cancelling()
    try:
        async with asyncio.timeout(seconds):
            yield
    except (redis.RedisError, RedisClusterException, OSError, TimeoutError) as error:
        cause = error.__cause__  # redis-py wraps what a server says to a new connection
        first = cause if isinstance(cause, redis.RedisError) else error
        why = str(first).partition(NO_SENTINEL)[0] or type(first).__name__
        if isinstance(first, REFUSAL_ERRORS) or NO_DATABASE in why:
            raise StoreRefused(f"Redis refuses this service (--redis): {why}") from error
        answers = isinstance(first, redis.ResponseError)
        raise StoreUnavailable(f"Redis {'answers with an error' if answers else 'is away'}: {why}") from error
    finally:
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError


class Outage:
    """Says in the log that Redis is away, at once and then once a minute, and when it is back."""

    def __init__(self, log: logging.Logger, meanwhile: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins with Redis there. `meanwhile` says what does not happen while it is away, as part of a sentence."""
        self._log = log
        self._meanwhile = meanwhile
        self._clock = clock
        self._began = self._said = 0.0  # s
        self.lasts = False

    def begins(self, error: StoreUnavailable) -> None:
        """Notes that Redis did not answer, now or still."""
        now = self._clock()
        if not self.lasts:
            self._began = self._said = now
            self._log.warning("%s; %s", error, self._meanwhile)
        elif now - self._said >= OUTAGE_LINE_S:
            self._said = now
            self._log.warning("%s, for %.0f s now; %s", error, now - self._began, self._meanwhile)
        self.lasts = True

    def ends(self) -> None:
        """Notes that Redis has answered."""
        if self.lasts:
            self._log.warning("Redis is back")
        self.lasts = False


async def check(store: Store, url: str) -> None:
    """Raises `StoreUnavailable` in one sentence if the server does not answer, `StoreRefused` if it cannot be used."""
    try:
        async with answered():
            info = await store.info("server")
    except StoreRefused as error:
        raise StoreRefused(f"--redis: {redacted(url)!r}: {error}") from None
    except StoreUnavailable as error:
        raise StoreUnavailable(f"--redis: {redacted(url)!r}: no answer from a Redis server ({error})") from None
    version = str(info.get("redis_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_REDIS_VERSION:
        raise StoreRefused(f"--redis: {redacted(url)!r}: server version {version} is older than 6.2")


async def until_answered(
    ask: Callable[[], Awaitable[Answer]], outage: Outage, report: Callable[[str], None] = lambda stage: None
) -> Answer:
    """Asks until Redis answers, and returns what it says: what a start has done so far is worth more than the wait.

    `report` is told the stage of the start while Redis is away. Raises `StoreRefused`: time does not mend a setting.
    """
    while True:
        try:
            answer = await ask()
        except StoreRefused:
            raise
        except StoreUnavailable as error:
            outage.begins(error)
            report(WAITING_STAGE)
            await asyncio.sleep(RETRY_S)
        else:
            outage.ends()
            return answer


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
        elif after - before < SLOW_TRIP_S:
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
