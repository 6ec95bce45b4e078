"""A cancellation that comes while Redis is asked is heard, whatever the Redis client makes of it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from infra.redis.clients import Store, connect
from infra.redis.store import answered, check
from tests.waiting import DEADLINE_S

TURNS_OF_THE_LOOP = (
    40  # turns of the event loop until the cancellation; with a connection at hand, an answer takes about 20
)


async def asked(store: Store) -> None:
    async with answered():
        await store.set("baton:test", "1")


async def checked(store: Store) -> None:
    await check(store, "redis://the-test")


@pytest.mark.parametrize("ask", [asked, checked])
async def test_a_cancellation_at_any_moment_is_heard(redis_url: str, ask: Callable[[Store], Awaitable[None]]) -> None:
    """A question that lasts longer than the turns was waiting for its answer, which loses no cancellation."""
    store = connect(redis_url)

    async def work() -> None:
        await ask(store)
        heard.append(False)
        await asyncio.Event().wait()

    try:
        await ask(store)
        for turns in range(TURNS_OF_THE_LOOP):
            heard: list[bool] = []
            task = asyncio.create_task(work())
            for _ in range(turns):
                await asyncio.sleep(0)
            before = bool(heard)
            task.cancel()
            await asyncio.wait([task], timeout=DEADLINE_S)
            assert task.cancelled() and bool(heard) == before, f"lost after {turns} turns"
    finally:
        await store.aclose()


async def test_who_was_cancelled_before_may_ask(redis_url: str) -> None:
    """What cleans up behind a cancellation asks Redis, too."""
    store, answers = connect(redis_url), list[bool]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(2):
                async with answered():
                    answers.append(bool(await store.ping()))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and answers == [True, True]
    await store.aclose()
