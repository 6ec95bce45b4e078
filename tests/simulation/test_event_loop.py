"""Coroutines wait in simulated time: in order, exactly as long as they ask, also inside a running event loop."""

import asyncio

import pytest

from simulation.event_loop import SimulatedLoop
from simulation.timeline import Timeline


async def test_sleeps_and_time_outs_end_at_their_times_and_events_at_once() -> None:
    timeline, told = Timeline(), list[tuple[str, float]]()
    bell = asyncio.Event()

    async def sleeps(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        told.append((name, timeline.now))

    async def waits(seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await bell.wait()
            told.append(("rung", timeline.now))
        except TimeoutError:
            told.append(("late", timeline.now))

    real, loop = asyncio.get_running_loop(), SimulatedLoop(timeline)
    timeline.at(300.0, bell.set)
    timeline.at(300.0, lambda: told.append(("planned", timeline.now)))
    with loop.running():
        for work in (sleeps("long", 1e6), sleeps("short", 0.25), sleeps("none", 0.0), waits(299.0), waits(301.0)):
            loop.create_task(work)
        timeline.run(lambda: False)
    assert told == [("none", 0.0), ("short", 0.25), ("late", 299.0), ("rung", 300.0), ("planned", 300.0), ("long", 1e6)]
    assert asyncio.get_running_loop() is real


def test_a_callbacks_exception_ends_the_simulation() -> None:
    timeline = Timeline()
    SimulatedLoop(timeline).call_later(1.0, [].pop)
    with pytest.raises(IndexError):
        timeline.run(lambda: False)
