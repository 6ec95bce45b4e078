"""Compares predicted times to first token with measured ones: learns what every request takes beside, tells the error.

What the cost model does not know (the way over Redis, the gateway's and the workers' threads) is the median of what the
newest requests took longer than predicted; it is added to each prediction. How far to trust one is learned as well:
`sure` is the 95th percentile of measured / expected, and no objective is promised beyond that.
"""

from collections import deque
from statistics import median

from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge, Histogram

from core.slo import percentile

NEWEST = 255
"""Requests of which the median error is told."""
BESIDE = 63
"""Requests of which the median of what they took beside is used."""
LONGEST = 1.0
"""Seconds that this is at most; what takes longer is not understood, and no constant."""
SURE, LEAST_SURE, MOST_SURE = 1.2, 1.1, 2.5
"""How many times as long as expected a first token takes, nearly always: before it is known, at least and at most."""
ENOUGH = 20
"""Requests from which that is known."""
SHORT = 0.5
"""Seconds from which what a request took longer is a multiple, and below which it is what all take beside."""
DOUBT = 0.98
"""What each refusal leaves of the mistrust: only who is accepted teaches, so nobody would be accepted ever again."""
_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Predicted(Struct, frozen=True):
    """Tells how well this gateway predicts the time to the first token."""

    requests: int = 0  # whose first token was predicted, and came
    median_error: float = 0.0  # of |predicted - measured| / measured, of the newest
    beside_ms: float = 0.0  # ms that are added to what the workers' costs say


class Predictions:
    """Keeps the newest predictions and what came of them."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self._model = model
        self._requests = 0
        self._errors: deque[float] = deque(maxlen=NEWEST)
        self._late: deque[float] = deque(maxlen=BESIDE)  # s that requests took longer than the workers' costs say
        self._beside = 0.0
        self._ratios: deque[float] = deque(maxlen=BESIDE)  # of measured to expected times
        self.sure = SURE  # what is expected takes at most so many times as long, nearly always
        self._histogram = Histogram(
            "baton:ttft_prediction_error_ratio",
            "|predicted - measured| / measured time to the first token",
            ["model_name"],
            buckets=_BUCKETS,
            registry=registry,
        )
        name, text = "baton:ttft_prediction_error_median", "Its median over the newest requests"
        Gauge(name, text, ["model_name"], registry=registry).labels(model).set_function(
            lambda: self.told().median_error
        )

    def expected(self, seconds: float) -> float:
        """Returns the s in which the first token is expected, where the workers' costs say `seconds`."""
        return seconds + self._beside

    def learn(self, seconds: float, expected: float, before: float, measured: float) -> None:
        """Takes note that a first token came `measured` s after its request.

        Of these, `before` had passed when it was sent; then `expected` were, where the workers' costs said `seconds`.
        """
        if measured <= 0:
            return
        error = abs(before + expected - measured) / measured
        self._requests += 1
        self._errors.append(error)
        self._histogram.labels(self._model).observe(error)
        if expected >= SHORT:
            self._ratios.append((measured - before) / expected)
            if len(self._ratios) >= ENOUGH:
                self.sure = min(MOST_SURE, max(LEAST_SURE, percentile(list(self._ratios), 0.95)))
        if seconds < SHORT or not self._late:
            self._late.append(measured - before - seconds)
            self._beside = min(LONGEST, max(0.0, median(self._late)))

    def refused(self) -> None:
        """Takes note that a request was refused by what was expected of it."""
        self.sure = max(LEAST_SURE, 1 + DOUBT * (self.sure - 1))
        self._beside *= DOUBT

    def told(self) -> Predicted:
        """Tells how well it predicts."""
        return Predicted(self._requests, median(self._errors) if self._errors else 0.0, self._beside * 1000)
