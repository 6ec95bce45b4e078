"""Limits of keys in simulated time: the gateway's limiter, over counts in memory in place of Redis."""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from gateway.keys.caller import Caller
from gateway.keys.limiter import Limiter
from infra.redis.rates import TICKS_PER_MINUTE, RateAmounts, RateCorrection, RateUsage, tick_of

Answer = TypeVar("Answer")


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


class SimulatedLimits:
    """Counts requests against the limits of their keys."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._limiter = Limiter(CountsInMemory(), clock)

    def admit(self, caller: Caller, request: str, tokens: int) -> None:
        """Counts a request that may use up to `tokens` tokens. Raises `APIError` beyond a limit."""
        if not caller.limits:
            return
        try:
            _at_once(self._limiter.admit(caller, request, tokens))
        finally:
            _at_once(self._limiter.flush())

    def settle(self, caller: Caller, request: str, used: int) -> None:
        """Ends a request that has used `used` tokens."""
        if caller.limits:
            self._limiter.settle(request, used)
            _at_once(self._limiter.flush())


def _at_once(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Runs a coroutine that waits for nothing, since its counts are in memory."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    raise AssertionError("counts in memory wait for nothing")
