"""Counts of a figure's values in logarithmic classes: percentiles of any number of values in bounded memory.

The values of a class differ by `RELATIVE_ERROR` at most, and count as their mean (compare Masson et al., "DDSketch",
2019, where they count as the middle of the class). Ranks are exact, so a percentile differs from that of the sorted
values by this error at most, and not at all while the values of its class are equal. Number, mean and maximum are
exact.
"""

import math

from msgspec import Struct

from contracts.slo import nearest_rank

RELATIVE_ERROR = 0.001
"""Largest relative error of a percentile."""
SMALLEST_VALUE = 1e-3
"""Smaller values, such as 0, share a class. In figures in ms it is 1 µs."""
_CLASS_WIDTH = math.log(1 + RELATIVE_ERROR)  # in natural logarithms
_SMALL_CLASS = math.floor(math.log(SMALLEST_VALUE) / _CLASS_WIDTH) - 1


class LogCounts(Struct):
    """The values so far. Eleven orders of magnitude, from 1 µs to three years of figures in ms, have 25,400 classes."""

    count: int = 0
    total: float = 0.0
    largest: float = 0.0
    counts: dict[int, int] = {}  # by class
    totals: dict[int, float] = {}  # by class

    def add(self, value: float, count: int = 1) -> None:
        """Adds a value, not below 0, that came `count` times."""
        at = math.floor(math.log(value) / _CLASS_WIDTH) if value >= SMALLEST_VALUE else _SMALL_CLASS
        self.count += count
        self.total += value * count
        self.counts[at] = self.counts.get(at, 0) + count
        self.totals[at] = self.totals.get(at, 0.0) + value * count
        if value > self.largest:
            self.largest = value

    def merge(self, other: "LogCounts") -> None:
        """Adds the values of other counts, as if each had been added here."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        for at, count in other.counts.items():
            self.counts[at] = self.counts.get(at, 0) + count
            self.totals[at] = self.totals.get(at, 0.0) + other.totals[at]

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentiles(self, *shares: float) -> list[float]:
        """Returns the value of the nearest rank for each share; shares ascend. 0 without values."""
        found = list[float]()
        ordered, passed, shown = iter(sorted(self.counts)), 0, 0.0
        for share in shares:
            rank = nearest_rank(share, self.count)
            while passed <= rank and (at := next(ordered, None)) is not None:
                passed += self.counts[at]
                shown = min(self.largest, self.totals[at] / self.counts[at])
            found.append(shown)
        return found
