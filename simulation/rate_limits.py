"""Counts of the limits of keys in memory, in place of Redis."""

from collections import Counter
from collections.abc import Iterable

from infra.redis.rates import TICKS_PER_MINUTE, RateAmounts, RateCorrection, RateUsage, tick_of


class _KeyCounts:
    """Use of a key: requests and tokens by tick, and the requests in progress."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.leases: set[str] = set()

    def forget_before(self, tick: int) -> None:
        for counts in (self.requests, self.tokens):
            for old in [each for each in counts if each < tick]:
                del counts[old]


class CountsInMemory:
    """What `infra.redis.rates.RateStore` keeps in Redis; leases do not expire, since this gateway does not die."""

    def __init__(self) -> None:
        self._keys: dict[str, _KeyCounts] = {}

    async def add(self, key: str, request: str, amounts: RateAmounts, now: float) -> RateUsage:
        counts, tick = self._keys.setdefault(key, _KeyCounts()), tick_of(now)
        counts.forget_before(tick - 2 * TICKS_PER_MINUTE)
        counts.requests[tick] += amounts.requests or 0
        counts.tokens[tick] += amounts.tokens or 0
        if amounts.leases is not None:
            counts.leases.add(request)
        return RateUsage(dict(counts.requests), dict(counts.tokens), len(counts.leases))

    async def settle(self, changes: Iterable[RateCorrection], leases: Iterable[tuple[str, str]], now: float) -> None:
        for one in changes:
            counts = self._keys[one.key]
            counts.requests[one.tick] += one.requests
            counts.tokens[one.tick] += one.tokens
            if one.ends:
                counts.leases.discard(one.request)
