"""Decides which measured offset of the Redis server's clock to use. Pure: time is an argument.

A server's clock is sometimes set, even by an hour and by mistake. Services measure the new offset seconds apart, so a
service that used it at once would differ from all others; and the mistake may be corrected soon.
"""

STEP_S = 0.5  # a larger difference means that the clock was set
CONFIRM_S = 30.0  # a new offset is used after all measurements agree for this long


class ClockOffset:
    """Follows small changes at once, and a step after `CONFIRM_S`."""

    def __init__(self, offset: float) -> None:
        self.believed = offset  # s
        self._other: float | None = None  # s, the last measurement of another offset
        self._since = 0.0  # s, time of the first measurement that agrees with it

    def measured(self, offset: float, now: float) -> bool:
        """Takes a measurement in s; returns whether it is used."""
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
