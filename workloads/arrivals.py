"""Times at which requests arrive: a rate that may change over time, and gaps that are more or less even.

The gaps of a process with one request per second are drawn first. The n-th request then arrives when the integral of
the rate reaches the sum of the first n gaps (Çinlar's inversion), so that every profile has the same burstiness.
"""

import math
import random
from collections.abc import Iterator
from itertools import count
from typing import Literal

from msgspec import Struct

Profile = Literal["constant", "ramp", "sinusoid", "steps"]
STEP_COUNT = 5
"""Number of rates of the profile `steps`, the lowest and the highest included."""
BISECTION_STEPS = 60


class Arrivals(Struct, frozen=True):
    """An open load: requests arrive whether or not earlier requests have ended.

    `rate` and `peak`: the lowest and the highest requests per second; `period_s`: seconds in which a ramp and steps go
    from the lowest to the highest rate, where they stay; seconds of a whole wave of a sinusoid. `burstiness`: the shape
    of the gaps' gamma distribution: 1 is a Poisson process, below 1 requests come in bursts, infinity makes even gaps.
    """

    rate: float
    profile: Profile = "constant"
    peak: float = 0.0
    period_s: float = 60.0
    burstiness: float = 1.0

    def expected(self, until_s: float) -> float:
        """Returns the number of requests that are expected until a time: the integral of the rate."""
        rise, period = self.peak - self.rate, self.period_s
        within = min(until_s, period)
        match self.profile:
            case "constant":
                return self.rate * until_s
            case "ramp":
                return self.rate * until_s + rise * (within * within / (2 * period) + until_s - within)
            case "sinusoid":
                wave = math.sin(2 * math.pi * until_s / period) * period / (2 * math.pi)
                return self.rate * until_s + rise / 2 * (until_s - wave)
            case "steps":
                length = period / STEP_COUNT
                begun = min(int(until_s / length), STEP_COUNT - 1)
                higher = length * begun * (begun - 1) / 2 + begun * (until_s - begun * length)
                return self.rate * until_s + rise / (STEP_COUNT - 1) * higher

    def times(self, chance: random.Random) -> Iterator[float]:
        """Yields the arrivals, s, without an end; the first comes at 0."""
        reached = at = 0.0
        for number in count():
            if number:
                reached += self._gap(chance)
                at = self._time_of(reached, at)
            yield at

    def _gap(self, chance: random.Random) -> float:
        if math.isinf(self.burstiness):
            return 1.0
        return chance.gammavariate(self.burstiness, 1 / self.burstiness)

    def _time_of(self, reached: float, after: float) -> float:
        """Returns the time, s, at which `expected` is `reached`; it is not before `after`."""
        if self.profile == "constant":
            return reached / self.rate
        low, step = after, 1 / max(self.rate, self.peak)
        while self.expected(low + step) < reached:
            low, step = low + step, 2 * step
        high = low + step
        for _ in range(BISECTION_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.expected(middle) < reached else (low, middle)
        return high
