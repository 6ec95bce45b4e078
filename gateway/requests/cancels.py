"""Repeats cancellations until each worker has acknowledged them. Pure: time is an argument."""

from typing import NamedTuple

from core.ids import AttemptKey, SampleKey

REPEAT_AFTER = 0.2  # s until the first repetition; each wait after it is twice as long …
REPEAT_MOST = 5.0  # … up to so many s


class Target(NamedTuple):
    """Names a sequence on one life of one worker, by the worker's epoch."""

    worker: str
    sample: SampleKey


class _Pending:
    __slots__ = ("due", "key", "until", "wait")

    def __init__(self, key: AttemptKey, now: float, until: float) -> None:
        self.key, self.due, self.until, self.wait = key, now, until, REPEAT_AFTER


class Cancels:
    """Holds what is cancelled and not acknowledged yet, up to a time after which workers forget it anyway."""

    def __init__(self) -> None:
        self._pending: dict[Target, _Pending] = {}

    def add(self, worker: str, key: AttemptKey, now: float, until: float) -> None:
        """Cancels attempts up to this one on a worker; repeats that until `until`."""
        target = Target(worker, key.of)
        known = self._pending.get(target)
        self._pending[target] = _Pending(max(key, known.key) if known else key, now, until)

    def acknowledged(self, worker: str, key: AttemptKey) -> bool:
        """Notes that the worker has answered for this attempt; returns False if nothing was cancelled there."""
        target = Target(worker, key.of)
        known = self._pending.get(target)
        if known is None:
            return False
        if key >= known.key:
            del self._pending[target]
        return True

    def worker_gone(self, worker: str) -> None:
        """Forgets the cancellations on a dead worker, which holds nothing."""
        self._pending = {target: one for target, one in self._pending.items() if target.worker != worker}

    def due(self, now: float) -> list[tuple[str, AttemptKey]]:
        """Returns the cancellations to send now, each with its worker."""
        found = []
        for target, one in list(self._pending.items()):
            if now >= one.until:
                del self._pending[target]
            elif now >= one.due:
                one.due, one.wait = now + one.wait, min(REPEAT_MOST, 2 * one.wait)
                found.append((target.worker, one.key))
        return found

    def __contains__(self, target: Target) -> bool:
        return target in self._pending

    def __len__(self) -> int:
        return len(self._pending)
