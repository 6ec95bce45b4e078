"""Does work on a few threads, on which tenants take turns: one tenant's long prompts delay no other's for long."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from core.turns import Party, Slots, TooManyWait
from gateway.errors import unavailable

EACH = 256
"""Works that one tenant may have waiting; all that are admitted are bounded by `--max-requests` and `--max-waiting`."""
T = TypeVar("T")


class TurnThreads:
    """Has some threads."""

    def __init__(self, count: int, name: str) -> None:
        """Makes up to `count` threads of this name, when they are needed."""
        self._slots = Slots(count, EACH)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[], T], party: Party, size: int, seconds: float) -> T:
        """Does `work`, of a size that turns are counted by, and returns what it gives.

        Raises `TimeoutError` where it takes longer than `seconds`, and `APIError` (503) where its turn has not come by
        then. A thread goes on with what nobody waits for any more, and is not given to others before it is done.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._slots.take(party, size)
        except (TimeoutError, TooManyWait):
            message = "the prompt could not be tokenized: too many others are"
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
        """Ends the threads, when they are done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
