"""Shows who has the next slot, where fewer works are done at once than come."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.fair_queueing.turns import NO_TENANT, FairSlots, TenantShare, TooManyWait


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(1, 3))
def test_a_tenants_works_are_done_in_order_and_tenants_take_turns(come: list[str], count: int) -> None:
    async def done() -> list[tuple[str, int]]:
        slots, order = FairSlots(count, 100), list[tuple[str, int]]()

        async def work(number: int, tenant: str) -> None:
            await slots.take(TenantShare(tenant), 600)
            order.append((tenant, number))
            await asyncio.sleep(0)
            slots.give_back()

        await asyncio.gather(*[work(number, tenant) for number, tenant in enumerate(come)])
        await asyncio.gather(*[slots.take(NO_TENANT, 1) for _ in range(count)])  # all are free again
        return order

    order = asyncio.run(done())
    assert sorted(number for _, number in order) == list(range(len(come)))
    for tenant in "ab":
        own = [number for whose, number in order if whose == tenant]
        assert own == sorted(own)
        first = [whose for whose, _ in order[count : count + 4]]
        if come[count:].count("a") >= 2 and come[count:].count("b") >= 2:
            assert tenant in first


async def test_a_tenants_works_that_wait_are_bounded() -> None:
    slots = FairSlots(1, 1)
    await slots.take(TenantShare("a"), 1)
    waits = asyncio.create_task(slots.take(TenantShare("a"), 1))
    await asyncio.sleep(0)
    with pytest.raises(TooManyWait):
        await slots.take(TenantShare("a"), 1)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    waits = asyncio.create_task(slots.take(TenantShare("a"), 1))  # in its place
    await asyncio.sleep(0)
    other = asyncio.create_task(slots.take(TenantShare("b"), 1))
    for task in (waits, other):
        slots.give_back()
        await task


@pytest.mark.parametrize("come", [False, True], ids=["before its turn", "as its turn comes"])
async def test_who_leaves_takes_no_slot_along(come: bool) -> None:
    slots = FairSlots(1, 9)
    await slots.take(NO_TENANT, 1)
    leaves, stays = [asyncio.create_task(slots.take(NO_TENANT, 1)) for _ in range(2)]
    await asyncio.sleep(0)
    if come:
        slots.give_back()
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    if not come:
        slots.give_back()
    await stays
