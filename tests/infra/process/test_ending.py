"""Tasks end, although a cancellation can be lost."""

import asyncio

from infra.process.ending import end
from tests.waiting import DEADLINE_S


async def test_tasks_are_done_when_it_returns() -> None:
    forever = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
    await asyncio.sleep(0)
    await end(forever)
    assert all(task.cancelled() for task in forever)


async def test_a_lost_cancellation_is_repeated() -> None:
    begun, lost = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await begun.wait()
    async with asyncio.timeout(DEADLINE_S):
        await end([task])
    assert lost.is_set() and task.cancelled()


async def test_a_task_that_has_failed_is_left_as_it_is() -> None:
    async def fails() -> None:
        raise ValueError("its own")

    task = asyncio.create_task(fails())
    await asyncio.wait([task])
    await end([task])
    assert str(task.exception()) == "its own"
