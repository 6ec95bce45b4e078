"""Compares predicted times to first token with measured ones: learns what every request takes beside, tells the error.

What the cost model does not know is of two sorts. What every request takes beside (the way over Redis, the gateway's
and the workers' threads) is the median of what the newest that found nobody before them took longer than predicted; it
is added to each prediction. What a line takes longer than its workers' costs say (cores that the other workers of a
host take, prompts that join a step) is a ratio: the median of measured / predicted of the newest that stood in one, for
each kind of worker. Both are bounded, and forgotten by newer ones. How far to trust a prediction is learned as well:
`sure` is the 95th percentile of measured / expected, and no objective is promised beyond that.
"""

from collections import OrderedDict, deque
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge, Histogram

from contracts.slo import percentile
from pricing.candidate import WorkerKind

NEWEST = 255
"""Requests of which the median error is told."""
BESIDE = 63
"""Requests of which the median of what they took beside is used."""
LONGEST = 1.0
"""Seconds that this is at most; what takes longer is not understood, and no constant."""
LINE = 31
"""Requests of a kind of worker of which the median ratio is used: some seconds of a busy one."""
KNOWN = 5
"""Requests from which a ratio is used."""
LEAST_RATIO, MOST_RATIO = 0.5, 4.0
"""Bounds of a ratio; beyond them the costs are wrong, and no line."""
BEHIND = 1.25
"""A prompt that is expected to take so many times as long as its own computation stands in a line."""
KINDS = 64
"""Kinds of workers whose ratios are kept; the oldest are forgotten."""
SURE, LEAST_SURE, MOST_SURE = 1.2, 1.1, 2.5
"""How many times as long as expected a first token takes, nearly always: before it is known, at least and at most."""
ENOUGH = 20
"""Requests from which that is known."""
SHORT = 0.5
"""Expected seconds from which how far to trust is learned: objectives are about as long."""
DOUBT = 0.98
"""What each refusal leaves of the mistrust: only who is accepted teaches, so nobody would be accepted ever again."""
_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Forecast(NamedTuple):
    """Holds what the workers' costs say of a request's first token."""

    kind: WorkerKind  # of the worker that computes its prompt
    seconds: float  # until its first token
    alone: float  # s of its own computation

    @property
    def in_line(self) -> bool:
        """Tells whether others are computed before it."""
        return self.seconds > BEHIND * self.alone


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
        self._lines: OrderedDict[WorkerKind, deque[float]] = OrderedDict()  # of measured to predicted times, in a line
        self._doubt = 1.0  # the share of what a line takes longer that is believed
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

    def expected(self, forecast: Forecast) -> float:
        """Returns the s in which the first token is expected, where the workers' costs say this."""
        return self._beside + self._ratio(forecast) * forecast.seconds

    def learn(self, forecast: Forecast, expected: float, before: float, measured: float) -> None:
        """Takes note that a first token came `measured` s after its request.

        Of these, `before` had passed when it was sent; then `expected` were, where the workers' costs said `forecast`.
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
        if forecast.in_line:
            self._learn_line(forecast, max(0.0, measured - before - self._beside) / forecast.seconds)
        else:
            self._late.append(measured - before - forecast.seconds)
            self._beside = min(LONGEST, max(0.0, median(self._late)))

    def _learn_line(self, forecast: Forecast, ratio: float) -> None:
        self._lines.setdefault(forecast.kind, deque(maxlen=LINE)).append(ratio)
        self._lines.move_to_end(forecast.kind)
        if len(self._lines) > KINDS:
            self._lines.popitem(last=False)
        self._doubt = 1.0

    def _ratio(self, forecast: Forecast) -> float:
        """Returns how many times as long as predicted a request takes, 1 where it stands in no line."""
        known = self._lines.get(forecast.kind, ()) if forecast.in_line else ()
        if len(known) < KNOWN:
            return 1.0
        return 1 + self._doubt * (min(MOST_RATIO, max(LEAST_RATIO, median(known))) - 1)

    def refused(self) -> None:
        """Takes note that a request was refused by what was expected of it."""
        self.sure = max(LEAST_SURE, 1 + DOUBT * (self.sure - 1))
        self._beside *= DOUBT
        self._doubt *= DOUBT

    def told(self) -> Predicted:
        """Tells how well it predicts."""
        return Predicted(self._requests, median(self._errors) if self._errors else 0.0, self._beside * 1000)
