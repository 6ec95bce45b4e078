"""The load generator knows how late it may have read what came."""

import asyncio
import time

import pytest
import uvloop

from launcher.bench.own_delays import OwnDelays

BUSY_S = 0.05


@pytest.mark.parametrize("looked", [False, True], ids=["the timer is late", "the timer was late"])
def test_a_loop_that_did_not_turn_may_have_read_late(looked: bool) -> None:
    async def read() -> tuple[float, float]:
        delays, began = OwnDelays(), time.perf_counter()
        delays.watch()
        while (at := time.perf_counter()) < began + BUSY_S:
            pass
        if looked:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        found = delays.before(at), delays.before(began)
        delays.close()
        return found

    late, before = uvloop.run(read())
    assert late >= BUSY_S - 0.01 and before == 0.0
