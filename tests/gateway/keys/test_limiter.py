"""A limiter gives back what a request has not used to the minute that it was counted in, by a clock of the test."""

from collections.abc import AsyncIterator

import pytest

from gateway.keys.caller import Caller, RateLimits
from gateway.keys.limiter import Limiter
from gateway.keys.remaining import LimitReached
from infra.redis.clients import connect
from infra.redis.rates import RateStore

BEGIN_S = 1_000_000.0  # s, in the server's time
CALLER = Caller(key="0123456789ab", limits=RateLimits(tokens_per_minute=200))


class Clock:
    now = BEGIN_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def rates(redis_url: str) -> AsyncIterator[RateStore]:
    client = connect(redis_url)
    await client.flushall()
    yield RateStore(client)
    await client.aclose()


async def test_unused_tokens_are_given_back_to_the_minute_of_their_request(rates: RateStore) -> None:
    """Given back to the minute of the request's end, they would be a credit once the request's minute is over."""
    clock = Clock()
    limiter = Limiter(rates, clock)
    await limiter.admit(CALLER, "a", 150)
    clock.now = BEGIN_S + 10
    limiter.settle("a", 10)
    await limiter.flush()
    clock.now = BEGIN_S + 61
    await limiter.admit(CALLER, "b", 200)
    clock.now = BEGIN_S + 62
    with pytest.raises(LimitReached):
        await limiter.admit(CALLER, "c", 1)


async def test_tokens_beyond_what_was_counted_are_added_to_the_minute_of_the_end(rates: RateStore) -> None:
    clock = Clock()
    limiter = Limiter(rates, clock)
    await limiter.admit(CALLER, "a", 10)
    clock.now = BEGIN_S + 50
    limiter.settle("a", 160)
    await limiter.flush()
    clock.now = BEGIN_S + 61
    with pytest.raises(LimitReached):
        await limiter.admit(CALLER, "b", 51)
    await limiter.flush()  # the refused request takes back what it had added
    clock.now = BEGIN_S + 62
    await limiter.admit(CALLER, "c", 50)
