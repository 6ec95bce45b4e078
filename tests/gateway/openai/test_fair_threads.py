"""Shows who has a thread next, where many wait for a few."""

import asyncio
import threading

import pytest

from gateway.errors import APIError
from gateway.openai.fair_threads import FairThreads
from infra.fair_queueing.turns import TenantShare
from tests.waiting import DEADLINE_S


async def test_another_tenants_work_comes_before_the_rest_of_ones_many() -> None:
    threads, go, order = FairThreads(1, "turns"), threading.Event(), list[str]()
    first = asyncio.create_task(threads.run(lambda: go.wait(DEADLINE_S), TenantShare("many"), 1, DEADLINE_S))
    many = [threads.run(lambda: order.append("many"), TenantShare("many"), 1000, DEADLINE_S) for _ in range(9)]
    works = [asyncio.create_task(each) for each in many]
    await asyncio.sleep(0)
    works.append(asyncio.create_task(threads.run(lambda: order.append("few"), TenantShare("few"), 1000, DEADLINE_S)))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, *works)
    assert order.index("few") <= 1 and len(order) == 10
    threads.close()


async def test_a_thread_is_not_given_to_others_before_it_is_done() -> None:
    threads, go = FairThreads(1, "turns"), threading.Event()
    with pytest.raises(TimeoutError):
        await threads.run(lambda: go.wait(DEADLINE_S), TenantShare("slow"), 1, 0.01)
    with pytest.raises(APIError) as caught:
        await threads.run(lambda: None, TenantShare("next"), 1, 0.01)
    assert (caught.value.status, caught.value.code) == (503, "tokenizers_busy")
    go.set()
    assert await threads.run(lambda: 7, TenantShare("next"), 1, DEADLINE_S) == 7
    threads.close()
