"""Ends the process when its engine thread hangs, so that its launcher restarts the worker.

A thread cannot be ended from outside, and the hanging call (a driver, a file system) may never return. Meanwhile the
worker would hold its requests, blocks and device.
"""

import asyncio
import faulthandler
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from infra.process.stillness import Stillness
from worker.engine_status import EngineStatus

CHECK_INTERVAL_S = 0.5
HUNG_EXIT_STATUS = 3
log = logging.getLogger("baton.worker")


def end_process(error: str) -> NoReturn:
    """Dumps all threads' stacks and the error, then exits without cleanup: the hanging thread may hold any lock."""
    faulthandler.dump_traceback(sys.stderr)
    print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(HUNG_EXIT_STATUS)


class EngineWatch:
    """Watches the engine thread's rounds. `bound`: minimum allowed seconds of a round; 0: no limit."""

    def __init__(self, status: EngineStatus, bound: float, end: Callable[[str], object] = end_process) -> None:
        self._status = status
        self._bound = bound
        self._end = end
        self._stillness = Stillness()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Ends the process if the round seen last is still running, and long overdue."""
        activity = self._status.activity
        seconds = self._stillness.look(activity.round if activity is not None else None, now)
        allowed = max(self._bound, self._status.patience())
        if activity is not None and self._bound and seconds > allowed:
            self._end(
                f"the engine thread hangs: it has been {activity.doing} for {now - activity.since:.0f} s, and a round "
                f"may take {allowed:.0f} s (--hang-seconds {self._bound:g}); this worker ends"
            )
