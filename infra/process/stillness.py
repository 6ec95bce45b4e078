"""Measures how long an observed value has not changed. Pure: time is an argument."""

from collections.abc import Hashable

MAX_LOOK_S = 2.0  # longest interval between two looks that counts; after a longer one the observer itself was stopped


class Stillness:
    """Sums the time in which a mark has stayed the same.

    The time between two looks counts up to `MAX_LOOK_S` only: a suspended host or a stopped observer proves nothing
    about the observed. Time in which the mark could not have moved does not count either.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._mark: Hashable = None
        self._looked = 0.0  # time of the last `look`, s

    def look(self, mark: Hashable, now: float, unable: float = 0.0) -> float:
        """Returns the seconds for which `mark` has stayed the same; None is a mark that need not move.

        `unable`: seconds since the last look in which the mark could not have moved.
        """
        if mark is None or mark != self._mark:
            self.seconds = 0.0
        else:
            self.seconds += max(0.0, min(now - self._looked, MAX_LOOK_S) - unable)
        self._mark, self._looked = mark, now
        return self.seconds
