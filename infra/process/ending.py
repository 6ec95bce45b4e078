"""Ends tasks that would run for ever."""

import asyncio
from collections.abc import Collection
from typing import Any

CANCEL_AGAIN_S = 0.1  # s


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels these tasks and returns when all are done; what they raised is theirs to report.

    A single cancellation can be lost: up to Python 3.11 `asyncio.wait_for`, under which redis sends its commands,
    swallows one that comes in the moment in which its work is done. So it is repeated.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
