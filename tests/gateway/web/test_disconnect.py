"""Work for a client that is gone ends: also work that a library keeps from hearing of its cancellation."""

import asyncio
import gc
from typing import Any

import pytest
from starlette.types import Message

from gateway.web.disconnect import ClientGone, until_gone
from tests.waiting import DEADLINE_S


class Client:
    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def swallowing(begun: asyncio.Event, times: int, result: str) -> str:
    """Work that loses so many cancellations, and then returns."""
    begun.set()
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    return result


async def test_work_that_ends_first_has_its_result() -> None:
    client = Client()
    assert await until_gone(client.receive, asyncio.sleep(0, "all")) == "all"
    client.left.set()
    assert await until_gone(client.receive, asyncio.sleep(0, "all")) == "all", "both in one turn of the loop"


async def test_what_work_raises_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await until_gone(Client().receive, fails())


@pytest.mark.parametrize("lost", [1, 3])
async def test_work_that_loses_cancellations_ends_and_its_late_result_is_dropped(lost: int) -> None:
    client, begun = Client(), asyncio.Event()
    waiting = asyncio.create_task(until_gone(client.receive, swallowing(begun, lost, "late")))
    await begun.wait()
    client.left.set()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ClientGone):
            await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_late_error_is_not_reported() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    client, begun = Client(), asyncio.Event()

    async def fails() -> None:
        await swallowing(begun, 1, "")
        raise ValueError("its own")

    waiting = asyncio.create_task(until_gone(client.receive, fails()))
    await begun.wait()
    client.left.set()
    with pytest.raises(ClientGone):
        await waiting
    del waiting
    await asyncio.sleep(0)  # behind which the loop holds no call of the task
    gc.collect()  # asyncio reports an error that nobody has taken when its task is collected
    assert reported == []


async def test_a_cancellation_from_outside_ends_the_work() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(until_gone(Client().receive, work()))
    await begun.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() and ended.is_set() and asyncio.all_tasks() == {asyncio.current_task()}
