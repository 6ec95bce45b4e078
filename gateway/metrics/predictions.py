"""Compares predicted times to first token with measured ones, and reports the error."""

from collections import deque
from statistics import median

from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge, Histogram

from pricing.routes.correction import FirstTokenCorrection, Forecast

ERROR_WINDOW = 255  # number of requests in the median error
_ERROR_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Predicted(Struct, frozen=True):
    """Quality of this gateway's predictions of the time to first token."""

    requests: int = 0  # with a predicted and a measured first token
    median_error: float = 0.0  # of |predicted - measured| / measured, of the newest requests
    beside_ms: float = 0.0  # overhead, in ms, that is added to the prediction from the workers' costs


class Predictions:
    """Error of the newest predictions, and the correction that is learned from them."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self.correction = FirstTokenCorrection()
        self._requests = 0
        self._errors: deque[float] = deque(maxlen=ERROR_WINDOW)
        self._histogram = Histogram(
            "baton:ttft_prediction_error_ratio",
            "|predicted - measured| / measured time to the first token",
            ["model_name"],
            buckets=_ERROR_BUCKETS,
            registry=registry,
        ).labels(model)
        name, text = "baton:ttft_prediction_error_median", "Its median over the newest requests"
        Gauge(name, text, ["model_name"], registry=registry).labels(model).set_function(
            lambda: self.summary().median_error
        )

    def learn(self, forecast: Forecast, expected: float, before: float, measured: float) -> None:
        """Learns from a first token, `measured` s after its request was received.

        The request was sent to its worker after `before` s, and its first token was expected `expected` s later.
        """
        if measured <= 0:
            return
        error = abs(before + expected - measured) / measured
        self._requests += 1
        self._errors.append(error)
        self._histogram.observe(error)
        self.correction.learn(forecast, expected, measured - before)

    def summary(self) -> Predicted:
        error = median(self._errors) if self._errors else 0.0
        return Predicted(self._requests, error, self.correction.overhead * 1000)
