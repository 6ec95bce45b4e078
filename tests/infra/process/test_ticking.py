"""Loops that wait for multiples of one time wake up together: on a clock that the test sets."""

import asyncio

import pytest

from infra.process.ticking import next_tick


@pytest.mark.parametrize(
    ("now", "seconds", "slept"),
    [(12.3, 0.05, 0.05), (12.301, 0.05, 0.049), (12.349, 0.05, 0.001), (12.3494, 0.05, 0.001), (7.0, 0.5, 0.5)],
)
async def test_a_wait_ends_at_the_next_whole_multiple(
    monkeypatch: pytest.MonkeyPatch, now: float, seconds: float, slept: float
) -> None:
    pauses = []

    async def sleep(pause: float) -> None:
        pauses.append(pause)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    await next_tick(seconds)
    monkeypatch.undo()
    assert pauses == [pytest.approx(slept)]
