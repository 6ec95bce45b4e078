"""Measures how long something has not moved, for somebody who looks at it often. Pure: time is an argument."""

from collections.abc import Hashable

MAX_LOOK_S = 2.0  # s between two looks that count: who looked later was stopped too, or had no processor


class Stillness:
    """Sums up the time in which a mark has stayed the same.

    What passes while nobody looks counts only up to `MAX_LOOK_S`: a host that was suspended, or an observer that was
    stopped, proves nothing about what it observes. Neither does time in which the observed could not have moved.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._mark: Hashable = None
        self._looked = 0.0  # s, when `look` was called last

    def look(self, mark: Hashable, now: float, unable: float = 0.0) -> float:
        """Returns the seconds for which `mark` has stayed the same; None is a mark of what need not move.

        `unable`: seconds since the last look in which the mark could not have moved.
        """
        if mark is None or mark != self._mark:
            self.seconds = 0.0
        else:
            self.seconds += max(0.0, min(now - self._looked, MAX_LOOK_S) - unable)
        self._mark, self._looked = mark, now
        return self.seconds
