"""Runs work on a few threads in which tenants take turns: long prompts of one tenant barely delay the others."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from gateway.errors import unavailable
from infra.fair_queueing.turns import FairSlots, TenantShare, TooManyWait

MAX_WAITING_PER_TENANT = 256
"""Maximum number of waiting jobs of one tenant; --max-requests and --max-waiting bound their total."""
Result = TypeVar("Result")


class FairThreads:
    """A few threads, each with one job at a time."""

    def __init__(self, count: int, name: str) -> None:
        self._slots = FairSlots(count, MAX_WAITING_PER_TENANT)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[], Result], share: TenantShare, size: int, seconds: float) -> Result:
        """Runs `work`, and returns its result. Fair shares are counted by `size`.

        Raises `TimeoutError` if the work takes longer than `seconds`, and `APIError` (503) if its turn has not come by
        then. A thread finishes a timed-out job before it takes another.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._slots.take(share, size)
        except (TimeoutError, TooManyWait):
            message = "the prompt could not be tokenized: too many other prompts are being tokenized"
            raise unavailable(message, "tokenizers_busy") from None
        loop = asyncio.get_running_loop()

        def done(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._slots.give_back)

        future = self._threads.submit(work)
        future.add_done_callback(done)
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Stops the threads after their current work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
