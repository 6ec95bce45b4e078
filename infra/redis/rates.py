"""Counts what each API key uses, in Redis, so that its limits hold over all gateways: without scripts, in one trip.

Requests and tokens are counted in *ticks* of half a second, a field each of a hash for each minute: adding to a field
and reading two hashes is one transaction. So a limit holds in every stretch of 60 s, wherever it begins, and not only
in whole minutes. Who is in progress is a sorted set of leases, which end by themselves when a gateway is gone.
Whoever adds beyond a limit takes back what it has added; until then others see too much, never too little.
Keys of Redis have the API key's id in braces, so that a cluster keeps them together. Times are the server's.
Whatever asks Redis raises `StoreUnavailable` where it is away.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from infra.redis.clients import Store
from infra.redis.store import KEY_PREFIX, answered

TICK_S = 0.5  # s; the window is this much longer than a minute, at most
TICKS_PER_MINUTE = 120  # of a minute
LEASE_S = 15.0  # s that a request counts as one in progress after its gateway has said so
_HASH_TTL_S = 150  # s that a minute's hash is kept behind its last change


class RateAmounts(Struct, frozen=True):
    """Says how much of what a request uses; None of what has no limit and is not counted."""

    requests: int | None = None
    tokens: int | None = None
    leases: int | None = None


class RateUsage(Struct, frozen=True):
    """Holds what a key has used, with what was just added: by tick, within the last two minutes."""

    requests: Mapping[int, int]
    tokens: Mapping[int, int]
    leases: int


class RateCorrection(Struct, frozen=True):
    """Corrects what was counted for a request in a tick: differences, and whether its lease is over."""

    key: str
    request: str
    tick: int
    requests: int = 0
    tokens: int = 0
    ends: bool = False


class RateStore:
    """Keeps the counts of all keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answered()
    async def add(self, key: str, request: str, amounts: RateAmounts, now: float) -> RateUsage:
        """Adds what a request uses, and returns what its key has used then."""
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
        """Makes these changes, and renews leases, each given as (key, request)."""
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
    """Returns the tick of a moment, in the server's time, s."""
    return int(now // TICK_S)


def _add(pipe: Any, key: str, what: str, tick: int, amount: int) -> None:
    pipe.hincrby(_hash(key, what, tick), str(tick), amount)
    pipe.expire(_hash(key, what, tick), _HASH_TTL_S)


def _lease(pipe: Any, key: str, request: str, now: float) -> None:
    pipe.zadd(_leases(key), {request: now + LEASE_S})
    pipe.pexpire(_leases(key), int(2000 * LEASE_S))


def _ticks(answers: Any) -> dict[int, int]:
    """Reads the answers to one amount: of the addition, of its expiry, and two hashes."""
    next(answers), next(answers)
    return {int(tick): int(count) for part in (next(answers), next(answers)) for tick, count in part.items()}


def _hash(key: str, what: str, tick: int) -> str:
    return f"{KEY_PREFIX}rates:{{{key}}}:{what}:{tick // TICKS_PER_MINUTE}"


def _leases(key: str) -> str:
    return f"{KEY_PREFIX}rates:{{{key}}}:leases"
