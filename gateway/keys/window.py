"""Usage within a sliding minute, from counts by tick. Pure: time is an argument."""

from collections.abc import Mapping

from infra.redis.rates import TICK_S, TICKS_PER_MINUTE

WINDOW_S = TICK_S * TICKS_PER_MINUTE  # s


class RateWindow:
    """Counts of the last minute. A tick counts as long as any part of it lies in the minute."""

    def __init__(self, counts: Mapping[int, int], now: float) -> None:
        self._now = now
        self._counts = sorted((tick, count) for tick, count in counts.items() if self._leaves(tick) > 0 and count)
        self.used = max(0, sum(count for _, count in self._counts))

    def wait(self, fits: int) -> float:
        """Returns the seconds until at most `fits` are used, if nothing is added; 0: now."""
        used, wait = self.used, 0.0
        for tick, count in self._counts:
            if used <= fits:
                break
            used, wait = used - count, self._leaves(tick)
        return wait

    def empty(self) -> float:
        """Returns the seconds until nothing is used."""
        return self._leaves(self._counts[-1][0]) if self._counts else 0.0

    def _leaves(self, tick: int) -> float:
        """Returns the seconds until a tick leaves the window."""
        return (tick + 1) * TICK_S + WINDOW_S - self._now
