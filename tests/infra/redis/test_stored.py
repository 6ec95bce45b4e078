"""Bodies are kept for one tenant, sealed, for a while, and within bounds, against a real server."""

import asyncio
from typing import Any

import pytest

from contracts.errors import StoreUnavailable
from infra.redis.clients import Store, connect
from infra.redis.stored import ALL_KEY, PIECE_BYTES, TENANT_DIVISOR, TenantStore
from tests.waiting import DEADLINE_S

SECRET = b"the deployment's secret"
MAX_BYTES = 64 * PIECE_BYTES  # bytes in all; a tenant has 16 pieces, a body 4


def kept(store: Store, seconds: float = 60.0, most: int = MAX_BYTES) -> TenantStore:
    return TenantStore(store, SECRET, seconds, most)


async def bodies(store: Store) -> int:
    keys = [key for key in await store.keys(f"{ALL_KEY}:*:*")]
    return sum([await store.strlen(key) for key in keys])


async def test_any_process_with_the_secret_finds_a_tenants_body(store: Store) -> None:
    assert await kept(store).put("tenant", "one", b"a body", now=100.0)
    assert await kept(store).get("tenant", "one") == b"a body"
    assert await kept(store).get("another", "one") is None
    assert await kept(store).get("tenant", "two") is None
    assert await TenantStore(store, b"another secret, quite", 60.0, MAX_BYTES).get("tenant", "one") is None


async def test_deleting_one_takes_it_out_of_every_index(store: Store) -> None:
    box = kept(store)
    await box.put("tenant", "one", b"x" * (3 * PIECE_BYTES), now=100.0)
    assert not await box.delete("another", "one")
    assert await box.delete("tenant", "one") and not await box.delete("tenant", "one")
    assert await box.get("tenant", "one") is None
    assert await store.keys("*") == []


async def test_a_body_and_what_lists_it_expire(store: Store) -> None:
    box = kept(store, seconds=0.05)
    assert await box.put("tenant", "one", b"a body", now=100.0)
    async with asyncio.timeout(DEADLINE_S):
        while await store.keys("*"):
            await asyncio.sleep(0.01)
    assert await box.get("tenant", "one") is None


async def test_what_has_expired_counts_no_more(store: Store) -> None:
    box = kept(store)
    for number in range(16):
        await box.put("tenant", str(number), b"x", now=100.0 + number)
    await box.put("tenant", "late", b"x", now=175.5)  # the first 16 have lived their 60 s
    assert await store.zcard(ALL_KEY) == 1


async def test_bounds_hold_under_many(store: Store) -> None:
    boxes = [kept(store) for _ in range(3)]
    body = b"x" * (2 * PIECE_BYTES - 100)  # two pieces, sealed
    for number in range(60):
        writes = (box.put(f"tenant {number % 9}", f"{number} {n}", body, 100.0 + number) for n, box in enumerate(boxes))
        assert all(await asyncio.gather(*writes))
        assert await bodies(store) <= MAX_BYTES
    assert await bodies(store) >= MAX_BYTES * 3 // 4, "those who add at once may each make room for the others as well"
    assert await boxes[0].get("tenant 5", "59 0") == body, "the youngest is there"
    assert await boxes[0].get("tenant 0", "0 0") is None, "the oldest is not"


async def test_a_tenant_who_keeps_much_takes_no_room_from_others(store: Store) -> None:
    box = kept(store)
    await box.put("quiet", "one", b"a body", now=100.0)
    for number in range(100):
        await box.put("busy", str(number), b"x" * (4 * PIECE_BYTES - 100), now=101.0 + number)
    assert await box.get("quiet", "one") == b"a body"
    assert await bodies(store) <= MAX_BYTES // TENANT_DIVISOR
    assert [await box.get("busy", str(number)) is not None for number in range(100)] == [False] * 96 + [True] * 4


async def test_what_is_too_large_is_not_kept(store: Store) -> None:
    box = kept(store)
    assert box.largest == 4 * PIECE_BYTES
    assert not await box.put("tenant", "one", b"x" * (4 * PIECE_BYTES), now=100.0)
    assert await store.keys("*") == []


@pytest.mark.parametrize(("seconds", "most"), [(0, MAX_BYTES), (60.0, 0)])
async def test_it_can_be_switched_off(store: Store, seconds: float, most: int) -> None:
    box = kept(store, seconds, most)
    assert not box.keeps
    assert not await box.put("tenant", "one", b"a body", now=100.0)
    assert await store.keys("*") == []


async def test_redis_shows_neither_text_nor_tenant_nor_name(store: Store) -> None:
    box = kept(store)
    await box.put("tenant Gustav", "name Gustav", b"purple Gustav", now=100.0)
    found: list[Any] = await store.keys("*")
    for key in await store.keys(f"{ALL_KEY}:*:*"):
        found.append(await store.get(key))
    for key in set(found[:3]) - set(await store.keys(f"{ALL_KEY}:*:*")):
        found += await store.zrange(key, 0, -1)
    assert len(found) == 6, "three keys, a body, and a member of each of two indexes"
    assert b"Gustav" not in b"".join(found)


async def test_a_body_that_somebody_moved_or_altered_is_not_there(store: Store) -> None:
    box = kept(store)
    await box.put("tenant", "one", b"first", now=100.0)
    (one,) = await store.keys(f"{ALL_KEY}:*:*")
    await box.put("tenant", "two", b"second", now=100.0)
    (two,) = set(await store.keys(f"{ALL_KEY}:*:*")) - {one}
    moved = await store.get(two)
    assert moved is not None
    await store.set(one, moved)
    assert await box.get("tenant", "one") is None and await box.get("tenant", "two") == b"second"


async def test_redis_away_is_said_within_a_bound() -> None:
    away = connect("redis://127.0.0.1:1")
    try:
        for ask in (kept(away).put("t", "n", b"b", now=1.0), kept(away).get("t", "n"), kept(away).delete("t", "n")):
            with pytest.raises(StoreUnavailable):
                await ask
    finally:
        await away.aclose()
