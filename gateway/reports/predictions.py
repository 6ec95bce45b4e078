"""Compares predicted times to first token with measured ones: learns what every request takes beside, tells the error.

What the cost model does not know (the way over Redis, the gateway's and the workers' threads) is the median of what the
newest requests took longer than predicted; it is added to each prediction.
"""

from collections import deque
from statistics import median

from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge, Histogram

NEWEST = 255
"""Requests of which the median error is told."""
BESIDE = 63
"""Requests of which the median of what they took beside is used."""
LONGEST = 1.0
"""Seconds that this is at most; what takes longer is not understood, and no constant."""
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
        self._late.append(measured - before - seconds)
        self._beside = min(LONGEST, max(0.0, median(self._late)))

    def told(self) -> Predicted:
        """Tells how well it predicts."""
        return Predicted(self._requests, median(self._errors) if self._errors else 0.0, self._beside * 1000)
