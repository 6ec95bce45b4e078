"""Which offset of a clock is believed when; and deadlines while the Redis server's clock is set by an hour."""

import time
from typing import Any

import pytest

from infra.redis.clients import Store
from infra.redis.clock_offset import CONFIRM_S, STEP_S, ClockOffset
from infra.redis.store import ServerClock

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("measured", "believed"),
    [
        ([(0.0, 0.1), (1.0, -0.1)], -0.1),  # a clock that runs a little fast or slow is followed
        ([(0.0, HOUR_S)], 0.0),  # a jump is not believed at once …
        ([(0.0, HOUR_S), (CONFIRM_S - 1, HOUR_S)], 0.0),
        ([(0.0, HOUR_S), (CONFIRM_S, HOUR_S + STEP_S / 2)], HOUR_S + STEP_S / 2),  # … but when it lasts
        ([(0.0, HOUR_S), (20.0, 0.0), (40.0, HOUR_S)], 0.0),  # what was mended in between begins anew
        ([(0.0, HOUR_S), (20.0, -HOUR_S), (40.0, -HOUR_S)], 0.0),  # and so does another jump
        ([(0.0, HOUR_S), (20.0, -HOUR_S), (20.0 + CONFIRM_S, -HOUR_S)], -HOUR_S),
    ],
)
def test_which_offset_is_believed(measured: list[tuple[float, float]], believed: float) -> None:
    offset = ClockOffset(0.0)
    for now, value in measured:
        offset.measured(value, now)
    assert offset.believed == believed


class SetClock:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.ahead = 0.0  # s

    async def time(self) -> tuple[int, int]:
        seconds, microseconds = await self.store.time()
        return int(seconds + self.ahead), microseconds


@pytest.mark.parametrize("ahead", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("seen", ["by nobody", "by the sender", "by the taker", "by both"])
async def test_a_deadline_survives_that_the_clock_is_set(
    store: Store, ahead: float, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of 600 s that was queued 2 s ago has 598 left, or 600, whoever has seen the new time already."""
    shift = [0.0]
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + shift[0])
    server: Any = SetClock(store)
    sender, taker = ServerClock(), ServerClock()
    for clock in (sender, taker):
        await clock.sync(server)
    held = taker.now() + 600  # of a job that was taken before
    server.ahead = ahead
    for later in (0.0, CONFIRM_S + 1):
        shift[0], server.ahead = shift[0] + later, server.ahead + later
        for clock, name in ((sender, "by the sender"), (taker, "by the taker")):
            if seen in (name, "by both"):
                await clock.sync(server)
    stepped = {name for clock, name in ((sender, "sender"), (taker, "taker")) if _jumped(clock)}
    assert stepped == {name for name in ("sender", "taker") if name in seen or seen == "by both"}
    queued_at = sender.server_now() - 2
    _, deadline = taker.taken_over(queued_at, queued_at + 600)
    assert 597 < taker.remaining_ms(deadline) / 1000 < 601
    assert 600 - CONFIRM_S - 3 < taker.remaining_ms(held) / 1000 < 600, "it was not moved"


def _jumped(clock: ServerClock) -> bool:
    return abs(clock.server_now() - clock.now()) > HOUR_S / 2
