"""Decides which measured offset of the Redis server's clock to believe. Pure: time is an argument.

A clock is set now and then, by an hour where somebody made a mistake. Other services measure the new offset seconds
earlier or later, so one that believed it at once would be alone with it; and the mistake may be mended before long.
"""

STEP_S = 0.5  # s; offsets that differ by more are of a clock that was set
CONFIRM_S = 30.0  # s for which all measurements agree on another offset, until it is believed


class ClockOffset:
    """Follows small changes at once, and a step once it has lasted."""

    def __init__(self, offset: float) -> None:
        self.believed = offset  # s
        self._other: float | None = None  # s, another offset, as it was measured last
        self._since = 0.0  # when (s) the first of the measurements came that agree on it

    def measured(self, offset: float, now: float) -> bool:
        """Takes a measurement; returns whether it is believed."""
        if abs(offset - self.believed) <= STEP_S:
            self.believed, self._other = offset, None
            return True
        if self._other is None or abs(offset - self._other) > STEP_S:
            self._since = now
        self._other = offset
        if now - self._since < CONFIRM_S:
            return False
        self.believed, self._other = offset, None
        return True
