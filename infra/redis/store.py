"""Errors and log lines for Redis outages, and the Redis server's clock.

Functions of `infra/redis` raise `StoreUnavailable` in place of the Redis client's errors.
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
STORE_TIMEOUT_S = 3.0  # for one operation, retries included
SLOW_TRIP_S = 0.1  # a longer round trip says too little about the server's clock
RETRY_S = 0.25  # between two attempts of a start that waits for Redis
WAITING_STAGE = "waiting for Redis"
OUTAGE_LINE_S = 60.0  # between two log lines about one outage
MIN_REDIS_VERSION = (6, 2)  # the first version with XADD NOMKSTREAM
REFUSAL_ERRORS = (redis.AuthenticationError, AuthorizationError, NoPermissionError)
NO_DATABASE = "DB index is out of range"
NO_SENTINEL = " : <"  # redis-py prints its objects after this text
Answer = TypeVar("Answer")


@asynccontextmanager
async def answered(seconds: float = STORE_TIMEOUT_S) -> AsyncIterator[None]:
    """Limits the Redis operations inside to `seconds` in all.

    Raises `StoreUnavailable` for an error or no answer, `StoreRefused` if the settings are the reason. A cancellation
    that comes inside is raised here at the latest: up to Python 3.11 `asyncio.wait_for`, which the Redis client uses,
    swallows a cancellation at the moment when the command has been sent.
    """
    task = asyncio.current_task()
    assert task is not None, "Redis is asked by a task"
    cancellations = task.cancelling()
    try:
        async with asyncio.timeout(seconds):
            yield
    except (redis.RedisError, RedisClusterException, OSError, TimeoutError) as error:
        cause = error.__cause__  # redis-py wraps a server's error on a new connection
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
    """Logs an outage of Redis at once, then once a minute, and its end."""

    def __init__(self, log: logging.Logger, meanwhile: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`meanwhile`: part of the log line about the effect of the outage."""
        self._log = log
        self._meanwhile = meanwhile
        self._clock = clock
        self._began = self._said = 0.0  # s
        self.lasts = False

    def begins(self, error: StoreUnavailable) -> None:
        now = self._clock()
        if not self.lasts:
            self._began = self._said = now
            self._log.warning("%s; %s", error, self._meanwhile)
        elif now - self._said >= OUTAGE_LINE_S:
            self._said = now
            self._log.warning("%s, for %.0f s now; %s", error, now - self._began, self._meanwhile)
        self.lasts = True

    def ends(self) -> None:
        if self.lasts:
            self._log.warning("Redis is back")
        self.lasts = False


async def check(store: Store, url: str) -> None:
    """Raises `StoreUnavailable` if the server does not answer, `StoreRefused` if it cannot be used."""
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
    """Calls `ask` until Redis answers, and returns the answer, so that a start's work is not lost.

    `report` gets the stage of the start during an outage. Raises `StoreRefused`, since waiting mends no setting.
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
    """The Redis server's time, and a local count of it that never jumps.

    `now` is the local count: it starts at the server's time and follows the monotonic clock. `taken_over` converts
    times from Redis into it.
    """

    def __init__(self) -> None:
        self._first = time.time() - time.monotonic()  # s, offset of `now` from the monotonic clock
        self._offset: ClockOffset | None = None  # None until measured

    @answered()
    async def sync(self, store: Store) -> None:
        """Measures the offset. The error is half a round trip, so a slow answer counts only if it is the first.

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
        """Returns the local count of the server's seconds since 1970, which never jumps."""
        return time.monotonic() + self._first

    def server_now(self) -> float:
        """Returns the server's seconds since 1970, for others to read."""
        return time.monotonic() + (self._offset.believed if self._offset is not None else self._first)

    def taken_over(self, since: float, deadline: float) -> tuple[float, float]:
        """Converts two server times from another process into the local count.

        If the server's clock was set in between, the age of `since` is unknown. Then `since` counts as now, and the
        deadline keeps its distance.
        """
        behind = self._first - (self._offset.believed if self._offset is not None else self._first)
        if not since <= self.server_now() < deadline:
            behind = self.now() - since
        return since + behind, deadline + behind

    def local(self, at: float) -> float:
        """Converts a time of the local count (s) into `time.monotonic`."""
        return at - self._first

    def remaining_ms(self, deadline: float) -> float:
        """Returns the ms until `deadline` (local count, s), negative after it."""
        return (deadline - self.now()) * 1000
