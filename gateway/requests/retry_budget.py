"""How many attempts may be repeated over all requests: a worker's death is absorbed, a storm is not fed. Pure."""

REFILL_SECONDS = 60.0


class RetryBudget:
    """A bucket of `capacity` retries that fills up again in a minute."""

    def __init__(self, capacity: int, now: float) -> None:
        self._capacity = float(capacity)
        self._left = self._capacity
        self._at = now

    def take(self, now: float) -> bool:
        """Whether one more retry is allowed."""
        self._left = min(self._capacity, self._left + (now - self._at) * self._capacity / REFILL_SECONDS)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
