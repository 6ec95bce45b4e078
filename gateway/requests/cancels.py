"""Repeats cancellations until each worker has acknowledged them. Pure: time is an argument."""

import heapq
import itertools
from typing import NamedTuple

from contracts.ids import AttemptKey, SampleKey

FIRST_REPEAT_S = 0.2  # s until the first repetition; each wait after it is twice as long …
MAX_REPEAT_S = 5.0  # … up to so many s


class Target(NamedTuple):
    """Names a sequence on one life of one worker, by the worker's epoch."""

    worker: str
    sample: SampleKey


class _Pending:
    __slots__ = ("key", "target", "until", "wait")

    def __init__(self, target: Target, key: AttemptKey, until: float) -> None:
        self.target, self.key, self.until, self.wait = target, key, until, FIRST_REPEAT_S


class Cancels:
    """Holds what is cancelled and not acknowledged yet, up to a time after which workers forget it anyway."""

    def __init__(self) -> None:
        self._pending: dict[Target, _Pending] = {}
        # When each is due next, s; a number settles ties. What is not pending any more leaves when its turn comes.
        self._turns: list[tuple[float, int, _Pending]] = []
        self._numbers = itertools.count()

    def add(self, worker: str, key: AttemptKey, now: float, until: float) -> AttemptKey:
        """Cancels attempts up to this one on a worker, and returns up to which: to be sent now.

        It is repeated until `until`.
        """
        target = Target(worker, key.of)
        known = self._pending.get(target)
        one = self._pending[target] = _Pending(target, max(key, known.key) if known else key, until)
        self._wait(one, now)
        return one.key

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
        """Returns the cancellations to repeat now, each with its worker."""
        found = []
        while self._turns and self._turns[0][0] <= now:
            one = heapq.heappop(self._turns)[2]
            if self._pending.get(one.target) is not one:
                continue  # it was acknowledged, or a later one has replaced it
            if now >= one.until:
                del self._pending[one.target]
            else:
                self._wait(one, now)
                found.append((one.target.worker, one.key))
        return found

    def _wait(self, one: _Pending, now: float) -> None:
        heapq.heappush(self._turns, (min(now + one.wait, one.until), next(self._numbers), one))
        one.wait = min(MAX_REPEAT_S, 2 * one.wait)

    def __contains__(self, target: Target) -> bool:
        return target in self._pending

    def __len__(self) -> int:
        return len(self._pending)
