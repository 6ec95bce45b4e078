"""What a key uses is counted in one trip, ends with its lease, and is gone from Redis a little later."""

from infra.redis.clients import Store
from infra.redis.rates import LEASE_S, RateAmounts, RateCorrection, RateStore, tick_of

NOW_S = 1_000_000.25
KEY = "0123456789ab"


async def test_additions_of_all_gateways_are_one_count(store: Store) -> None:
    one, other = RateStore(store), RateStore(store)
    tick = tick_of(NOW_S)
    first = await one.add(KEY, "a", RateAmounts(1, 30, 1), NOW_S)
    assert (first.requests, first.tokens, first.leases) == ({tick: 1}, {tick: 30}, 1)
    second = await other.add(KEY, "b", RateAmounts(1, 5, 1), NOW_S + 59)
    assert second.requests == {tick: 1, tick + 118: 1} and second.tokens == {tick: 30, tick + 118: 5}
    assert (await one.add("ab0123456789", "c", RateAmounts(1), NOW_S)).requests == {tick: 1}, "another key"


async def test_what_is_settled_is_taken_back_where_it_was_added(store: Store) -> None:
    rates, tick = RateStore(store), tick_of(NOW_S)
    await rates.add(KEY, "a", RateAmounts(1, 30, 1), NOW_S)
    await rates.settle(
        [RateCorrection(KEY, "a", tick, 0, -10, True), RateCorrection(KEY, "a", tick + 9, -1, 4)], [], NOW_S + 5
    )
    counted = await rates.add(KEY, "b", RateAmounts(1, 1, 1), NOW_S + 9)
    assert counted.requests == {tick: 1, tick + 9: -1, tick + 18: 1}
    assert counted.tokens == {tick: 20, tick + 9: 4, tick + 18: 1} and counted.leases == 1


async def test_a_lease_that_nobody_renews_ends(store: Store) -> None:
    rates = RateStore(store)
    for name in ("dead", "alive"):
        await rates.add(KEY, name, RateAmounts(leases=1), NOW_S)
    await rates.settle([], [(KEY, "alive")], NOW_S + LEASE_S - 1)
    assert (await rates.add(KEY, "new", RateAmounts(leases=1), NOW_S + LEASE_S - 0.5)).leases == 3
    assert (await rates.add(KEY, "newer", RateAmounts(leases=1), NOW_S + LEASE_S + 0.5)).leases == 3


async def test_only_what_has_a_limit_is_counted_and_nothing_stays(store: Store) -> None:
    rates = RateStore(store)
    await rates.add(KEY, "a", RateAmounts(requests=1), NOW_S)
    (place,) = await store.keys("baton:rates:*")
    assert place == f"baton:rates:{{{KEY}}}:requests:{tick_of(NOW_S) // 120}".encode()
    await rates.add(KEY, "a", RateAmounts(tokens=5, leases=1), NOW_S)
    places = await store.keys("baton:rates:*")
    assert len(places) == 3
    for place in places:
        assert 0 < await store.pttl(place) <= 150_000


async def test_counting_is_one_trip(store: Store) -> None:
    rates = RateStore(store)
    await rates.add(KEY, "a", RateAmounts(1, 1, 1), NOW_S)
    before = (await store.info("commandstats"))["cmdstat_exec"]["calls"]
    for number in range(10):
        await rates.add(KEY, f"{number}", RateAmounts(1, 1, 1), NOW_S)
    assert (await store.info("commandstats"))["cmdstat_exec"]["calls"] == before + 10
