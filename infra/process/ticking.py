"""Waits for moments that loops of one process share: waking up costs it more than most of what it does then."""

import asyncio


async def next_tick(seconds: float) -> None:
    """Returns at the next whole multiple of `seconds` (of whole ms) on the event loop's clock.

    Whoever waits for multiples of the same time wakes up in the same turn of the loop.
    """
    period = round(seconds * 1000)  # ms
    now = round(asyncio.get_running_loop().time() * 1000)  # ms, as timers count
    await asyncio.sleep((period - now % period) / 1000)
