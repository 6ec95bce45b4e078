"""Counts each API key's use in Redis, so that limits hold over all gateways; without scripts, in one round trip.

Requests and tokens are counted in *ticks* of half a second: a field per tick in a hash per minute. Adding to a field
and reading two hashes is one transaction, so a limit holds in any window of 60 s, not only in whole minutes. Requests
in progress are a sorted set of leases, which expire if their gateway dies. A gateway that exceeds a limit takes its
addition back; until then other gateways see too much, never too little. Redis keys have the API key's id in braces, so
that a cluster keeps them on one node. Times are the server's. Methods raise `StoreUnavailable` if Redis is away.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from infra.redis.clients import Store
from infra.redis.store import KEY_PREFIX, answered

TICK_S = 0.5  # the window is up to this much longer than a minute
TICKS_PER_MINUTE = 120
LEASE_S = 15.0  # a request counts as in progress this long after its gateway's last renewal
_HASH_TTL_S = 150  # after a hash's last change


class RateAmounts(Struct, frozen=True):
    """What a request uses of each limit; None: not limited, not counted."""

    requests: int | None = None
    tokens: int | None = None
    leases: int | None = None


class RateUsage(Struct, frozen=True):
    """A key's use by tick within the last two minutes, including the last addition."""

    requests: Mapping[int, int]
    tokens: Mapping[int, int]
    leases: int


class RateCorrection(Struct, frozen=True):
    """Correction of a request's counts in a tick: differences, and whether its lease ends."""

    key: str
    request: str
    tick: int
    requests: int = 0
    tokens: int = 0
    ends: bool = False


class RateStore:
    """The counts of all keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answered()
    async def add(self, key: str, request: str, amounts: RateAmounts, now: float) -> RateUsage:
        """Adds a request's use, and returns the key's use."""
        tick = tick_of(now)
        async with self._store.pipeline(transaction=True) as pipe:
            for what, amount in (("requests", amounts.requests), ("tokens", amounts.tokens)):
                if amount is not None:
                    _add(pipe, key, what, tick, amount)
                    pipe.hgetall(_hash(key, what, tick))
                    pipe.hgetall(_hash(key, what, tick - TICKS_PER_MINUTE))
            if amounts.leases is not None:
                pipe.zremrangebyscore(_leases(key), "-inf", now)
                _lease(pipe, key, request, now)
                pipe.zcard(_leases(key))
            answers = iter(await pipe.execute())
        requests = _ticks(answers) if amounts.requests is not None else {}
        tokens = _ticks(answers) if amounts.tokens is not None else {}
        return RateUsage(requests, tokens, [*answers][-1] if amounts.leases is not None else 0)

    @answered()
    async def settle(self, changes: Iterable[RateCorrection], leases: Iterable[tuple[str, str]], now: float) -> None:
        """Applies corrections, and renews leases, given as (key, request)."""
        async with self._store.pipeline(transaction=False) as pipe:
            for one in changes:
                for what, amount in (("requests", one.requests), ("tokens", one.tokens)):
                    if amount:
                        _add(pipe, one.key, what, one.tick, amount)
                if one.ends:
                    pipe.zrem(_leases(one.key), one.request)
            for key, request in leases:
                _lease(pipe, key, request, now)
            await pipe.execute()


def tick_of(now: float) -> int:
    """Returns the tick of a server time in s."""
    return int(now // TICK_S)


def _add(pipe: Any, key: str, what: str, tick: int, amount: int) -> None:
    pipe.hincrby(_hash(key, what, tick), str(tick), amount)
    pipe.expire(_hash(key, what, tick), _HASH_TTL_S)


def _lease(pipe: Any, key: str, request: str, now: float) -> None:
    pipe.zadd(_leases(key), {request: now + LEASE_S})
    pipe.pexpire(_leases(key), int(2000 * LEASE_S))


def _ticks(answers: Any) -> dict[int, int]:
    next(answers), next(answers)
    return {int(tick): int(count) for part in (next(answers), next(answers)) for tick, count in part.items()}


def _hash(key: str, what: str, tick: int) -> str:
    return f"{KEY_PREFIX}rates:{{{key}}}:{what}:{tick // TICKS_PER_MINUTE}"


def _leases(key: str) -> str:
    return f"{KEY_PREFIX}rates:{{{key}}}:leases"
