"""Cancellations until each worker has acknowledged them. Pure: time is an argument."""

from typing import NamedTuple

from core.ids import SequenceKey

REPEAT_AFTER = 0.2  # s, doubling up to the next
REPEAT_MOST = 5.0


class Target(NamedTuple):
    """A sequence on one life of one worker."""

    worker: str
    key: SequenceKey


class _Pending:
    __slots__ = ("attempt", "due", "until", "wait")

    def __init__(self, attempt: int, now: float, until: float) -> None:
        self.attempt, self.due, self.until, self.wait = attempt, now, until, REPEAT_AFTER


class Cancels:
    """What is cancelled and not yet acknowledged. Bounded by the requests' deadlines, after which workers forget."""

    def __init__(self) -> None:
        self._pending: dict[Target, _Pending] = {}

    def add(self, target: Target, attempt: int, now: float, until: float) -> None:
        """Attempts up to this one are dead there."""
        known = self._pending.get(target)
        self._pending[target] = _Pending(max(attempt, known.attempt if known else 0), now, until)

    def acknowledged(self, target: Target, attempt: int) -> bool:
        """The worker has answered for this attempt; False if nothing was cancelled there."""
        known = self._pending.get(target)
        if known is None:
            return False
        if attempt >= known.attempt:
            del self._pending[target]
        return True

    def worker_gone(self, worker: str) -> None:
        """A dead worker holds nothing."""
        self._pending = {target: one for target, one in self._pending.items() if target.worker != worker}

    def due(self, now: float) -> list[tuple[Target, int]]:
        """The cancellations to send now, with their attempts."""
        found = []
        for target, one in list(self._pending.items()):
            if now >= one.until:
                del self._pending[target]
            elif now >= one.due:
                one.due, one.wait = now + one.wait, min(REPEAT_MOST, 2 * one.wait)
                found.append((target, one.attempt))
        return found

    def __contains__(self, target: Target) -> bool:
        return target in self._pending

    def __len__(self) -> int:
        return len(self._pending)
