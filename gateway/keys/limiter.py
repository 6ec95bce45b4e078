"""Enforces the rate limits of keys over all gateways: counts before a request begins, corrects at its end.

A request is counted with the tokens that it may use. At its end unused tokens are given back, and additional tokens (of
an answer without a limit) are added. Shortly after a refusal, further requests of the same key are refused without
asking Redis, so that a flood costs neither Redis nor the callers within their limits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from contracts.errors import StoreUnavailable
from gateway.errors import APIError, unavailable
from gateway.keys.caller import Caller, RateLimits
from gateway.keys.remaining import LimitReached, Remaining
from infra.redis.rates import LEASE_S, RateAmounts, RateCorrection, RateUsage, tick_of
from infra.redis.store import Outage

REFUSAL_STANDS_S = 0.1  # validity of a refusal for later requests of the same key
MAX_WAITING_CHANGES = 65536  # queued corrections; beyond it the oldest are dropped, whose minute ends soon
MAX_CHANGES_PER_TRIP = 512  # corrections in one message to Redis
log = logging.getLogger("baton.gateway")


class _Open(Struct, frozen=True):
    """Counts charged to a request in progress."""

    caller: Caller
    tick: int
    tokens: int


class _Refusal(Struct, frozen=True):
    """A refusal that holds for later requests of the same key."""

    error: LimitReached
    at: float  # server time, s
    until: float  # server time, s
    tokens: int  # a request of fewer tokens may be within the limit


class RateCounts(Protocol):
    """Counts the requests and tokens of all keys. Counts in Redis raise `StoreUnavailable` while Redis is away."""

    async def add(self, key: str, request: str, amounts: RateAmounts, now: float) -> RateUsage:
        """Adds a request's use, and returns the key's use."""
        ...

    async def settle(self, changes: Iterable[RateCorrection], leases: Iterable[tuple[str, str]], now: float) -> None:
        """Applies corrections, and renews leases, given as (key, request)."""


class Limiter:
    """Counts the requests of callers with limits; other callers cost nothing here. `now` is the Redis server's time."""

    def __init__(self, rates: RateCounts, now: Callable[[], float]) -> None:
        self._rates = rates
        self._now = now
        self._open: dict[str, _Open] = {}  # by the id of the request
        self._refused: dict[str, _Refusal] = {}  # by the id of the key
        self._changes: deque[RateCorrection] = deque(maxlen=MAX_WAITING_CHANGES)
        self._news = asyncio.Event()
        self._outage = Outage(log, "what requests have not used of their limits is not given back")

    def check(self, caller: Caller) -> None:
        """Refuses a caller that is known to be beyond a limit, before its body is read. Raises `APIError` (429)."""
        if caller.limits:
            self._still_refused(caller, 0)

    async def admit(self, caller: Caller, request: str, tokens: int | None) -> Mapping[str, str]:
        """Counts a request that may use up to `tokens` tokens, and returns headers with the remaining limits.

        `tokens` is None if it needs no worker: then only the limit of requests applies. Raises `APIError`: 429 beyond a
        limit, 400 for more tokens than a minute has, 503 without Redis.
        """
        limits = caller.limits if tokens is not None else RateLimits(caller.limits.requests_per_minute)
        asks_worker, tokens = tokens is not None, tokens or 0
        if not limits:
            return {}
        most = limits.tokens_per_minute
        if most and tokens > most:
            message = f"prompt and answer may have {tokens} tokens, and this key may use {most} per minute"
            raise APIError(400, message, code="more_than_a_minute")
        self._still_refused(caller, tokens)
        amounts = RateAmounts(
            1 if limits.requests_per_minute else None, tokens if most else None, 1 if limits.concurrency else None
        )
        now = self._now()
        try:
            counted = await self._rates.add(caller.key, request, amounts, now)
        except StoreUnavailable:
            message = "the limits of this key cannot be counted, because Redis is away"
            raise unavailable(message, "limits_unavailable", 2.0) from None
        remaining = Remaining.of(limits, counted, now)
        error = remaining.refusal(tokens)
        if error is None:
            if asks_worker:
                self._open[request] = _Open(caller, tick_of(now), tokens)
            return remaining.headers()
        self._change(
            RateCorrection(caller.key, request, tick_of(now), -(amounts.requests or 0), -(amounts.tokens or 0), True)
        )
        of_tokens = bool(most) and remaining.tokens.used > most
        self._refused[caller.key] = _Refusal(
            error, now, now + min(REFUSAL_STANDS_S, error.retry_after or 0.0), tokens if of_tokens else 0
        )
        raise error

    def settle(self, request: str, used: int) -> None:
        """Ends a request that has used `used` tokens. An unknown request changes nothing."""
        if (open := self._open.pop(request, None)) is None:
            return
        limits = open.caller.limits
        more = used - open.tokens if limits.tokens_per_minute else 0
        if more or limits.concurrency:
            tick = open.tick if more < 0 else tick_of(self._now())
            self._change(RateCorrection(open.caller.key, request, tick, 0, more, bool(limits.concurrency)))

    async def run(self) -> None:
        """Sends corrections to Redis, and renews leases, until cancelled."""
        due = self._now()
        while True:
            try:
                async with asyncio.timeout(max(0.0, due - self._now())):
                    await self._news.wait()
            except TimeoutError:
                due = self._now() + LEASE_S / 3
                await self.flush(renew=True)
            else:
                await self.flush()

    async def flush(self, renew: bool = False) -> None:
        """Sends all corrections. Lost corrections are not repeated: a minute later they would change nothing."""
        self._news.clear()
        leases = [(one.caller.key, id) for id, one in self._open.items() if one.caller.limits.concurrency and renew]
        try:
            while self._changes or leases:
                changes = [self._changes.popleft() for _ in range(min(MAX_CHANGES_PER_TRIP, len(self._changes)))]
                await self._rates.settle(changes, leases, self._now())
                leases = []
                self._outage.ends()
        except StoreUnavailable as error:
            self._outage.begins(error)

    def _change(self, change: RateCorrection) -> None:
        self._changes.append(change)
        self._news.set()

    def _still_refused(self, caller: Caller, tokens: int) -> None:
        refusal = self._refused.get(caller.key)
        if refusal is None:
            return
        now, error = self._now(), refusal.error
        if now >= refusal.until:
            del self._refused[caller.key]
        elif tokens >= refusal.tokens:
            raise LimitReached(
                error.message, max(0.001, (error.retry_after or 0) + refusal.at - now), error.limit_headers
            )
