"""Repeats cancellations until each worker has acknowledged them. Pure: time is an argument."""

import heapq
import itertools
from typing import NamedTuple

from contracts.ids import AttemptKey, SampleKey

FIRST_REPEAT_S = 0.2  # s until the first repetition; each later wait is twice as long, …
MAX_REPEAT_S = 5.0  # … up to this limit, s


class Target(NamedTuple):
    """A sequence on a worker, which is identified by its epoch."""

    worker: str
    sample: SampleKey


class _Pending:
    __slots__ = ("key", "target", "until", "wait")

    def __init__(self, target: Target, key: AttemptKey, until: float) -> None:
        self.target, self.key, self.until, self.wait = target, key, until, FIRST_REPEAT_S


class Cancels:
    """The cancellations that are not acknowledged yet, up to the time when workers forget the sequence anyway."""

    def __init__(self) -> None:
        self._pending: dict[Target, _Pending] = {}
        # By the time of the next repetition, s, and a number for ties. Acknowledged entries are skipped when they are
        # due.
        self._turns: list[tuple[float, int, _Pending]] = []
        self._numbers = itertools.count()

    def add(self, worker: str, key: AttemptKey, now: float, until: float) -> AttemptKey:
        """Cancels all attempts up to `key` on a worker, repeatedly until `until`.

        Returns the latest cancelled attempt, to be sent now.
        """
        target = Target(worker, key.of)
        known = self._pending.get(target)
        one = self._pending[target] = _Pending(target, max(key, known.key) if known else key, until)
        self._wait(one, now)
        return one.key

    def acknowledged(self, worker: str, key: AttemptKey) -> bool:
        """Records a worker's answer for this attempt; returns False if nothing was cancelled there."""
        target = Target(worker, key.of)
        known = self._pending.get(target)
        if known is None:
            return False
        if key >= known.key:
            del self._pending[target]
        return True

    def worker_gone(self, worker: str) -> None:
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
