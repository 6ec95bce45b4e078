"""Tells when a thread waited for a core: other processes' work is in its times then (proc(5), `schedstat`)."""

import asyncio
import time
from bisect import bisect_left
from pathlib import Path

from msgspec import Struct

LOOK_PERIOD_S = 0.005
MAX_WAITED_S = 0.0001
"""In two periods, of a thread that counts as undisturbed."""


class CoreWaits(Struct):
    """When the thread of an event loop was looked at, and for how long it had waited for a core until then, s."""

    at: list[float] = []
    waited: list[float] = []

    def look(self) -> None:
        """Looks now and, as long as the event loop runs, every `LOOK_PERIOD_S`."""
        self.at.append(time.perf_counter())
        self.waited.append(int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9)
        asyncio.get_running_loop().call_later(LOOK_PERIOD_S, self.look)

    def undisturbed(self, at: float) -> bool:
        """Tells whether the thread hardly waited in the period of a moment and in the period before."""
        after = bisect_left(self.at, at)
        if not 2 <= after < len(self.at):
            return False
        return self.waited[after] - self.waited[after - 2] <= MAX_WAITED_S
