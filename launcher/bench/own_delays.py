"""How late a load generator may have read bytes: its event loop was busy, or its process waited for a core.

A timer of the loop is due every few milliseconds; it is as late as the bytes that arrived meanwhile.
"""

import asyncio
import time
from bisect import bisect_right

PERIOD_S = 0.005
MIN_DELAY_S = 0.002
"""Lateness of a timer that counts: the loop's own timers end a millisecond early or late."""
MAX_DELAYS_KEPT = 100_000
"""Number of newest delays that are kept: eight minutes of them, if every timer were late."""


class OwnDelays:
    """The times, of `time.perf_counter`, in which the running event loop did not turn."""

    def __init__(self) -> None:
        self._due = float("inf")
        self._began: list[float] = []
        self._ended: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begins to watch the running event loop."""
        self._due = time.perf_counter() + PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def before(self, at: float) -> float:
        """Returns how many seconds earlier bytes that were read at a time may have arrived; 0: the loop was idle."""
        if at >= self._due + MIN_DELAY_S:
            return at - self._due  # the timer is late now
        place = bisect_right(self._began, at) - 1
        if place < 0 or at > self._ended[place] + PERIOD_S:
            return 0.0
        return at - self._began[place]

    def _look(self) -> None:
        now = time.perf_counter()
        if now >= self._due + MIN_DELAY_S:
            self._began.append(self._due)
            self._ended.append(now)
            if len(self._began) > MAX_DELAYS_KEPT:
                del self._began[: MAX_DELAYS_KEPT // 2], self._ended[: MAX_DELAYS_KEPT // 2]
        self.watch()
