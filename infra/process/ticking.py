"""Shared wake-up times for loops of one process: waking up costs more than most of their work."""

import asyncio


async def next_tick(seconds: float) -> None:
    """Returns at the next multiple of `seconds` (whole ms) on the event loop's clock.

    Callers with the same period wake up in the same turn of the loop.
    """
    period = round(seconds * 1000)  # ms
    now = round(asyncio.get_running_loop().time() * 1000)  # ms, as timers count
    await asyncio.sleep((period - now % period) / 1000)
