"""Ends tasks that run for ever."""

import asyncio
from collections.abc import Collection
from typing import Any

CANCEL_AGAIN_S = 0.1


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels tasks, and returns when all are done. Their exceptions are not raised.

    A cancellation can be lost: up to Python 3.11 `asyncio.wait_for`, which redis uses, swallows a cancellation that
    arrives at the moment its work is done. So it is repeated.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
