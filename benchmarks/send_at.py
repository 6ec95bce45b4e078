"""Starts requests at their times, for benchmarks whose requests `baton bench` does not send."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from infra.process.ending import end
from infra.process.tasks import child
from launcher.bench.sender import sleep_until

Answer = TypeVar("Answer")


async def send_at(
    times: Iterable[float], requests: Iterable[Callable[[], Coroutine[Any, Any, Answer]]], begin: float
) -> list[asyncio.Task[Answer]]:
    """Starts each request at its time, s from `begin`, and returns the tasks; all are cancelled if this is."""
    tasks = list[asyncio.Task[Answer]]()
    try:
        for at, request in zip(times, requests, strict=True):
            await sleep_until(begin + at)
            tasks.append(child(request()))
    except asyncio.CancelledError:
        await end(tasks)
        raise
    return tasks
