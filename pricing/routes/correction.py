"""Correction of predicted times to first token by measured times, for delays that no worker's costs contain.

    E = T + w·(b + (q - 1)·T)          T: price.py, the prediction from the workers' costs

    b   overhead of every request (Redis, threads of gateway and workers): median of measured - T over the newest
        requests that met no queue
    q   delay of queues (cores that other workers of the host take, prompts that join a step): median of measured / T
        over the newest requests that met a queue at this kind of worker; 1 without a queue
    w   weight of the correction: each refusal lowers it, and each first token sets it to 1, since only accepted
        requests can show that a correction is outdated

Predictions from costs that few steps have confirmed teach nothing here: costs that were measured while other workers
started, and a burst of requests that were predicted by them, would be taken for a delay of queues.

The gateway promises a first token only if E·margin meets the objective, where margin is the 80th percentile of
measured / E. In simulations whose steps are followed by pauses that no worker measures, q lowers the median error of
predictions by a fifth. Promises also heed `throughput.py`.
"""

from collections import OrderedDict, deque
from statistics import median, quantiles
from typing import NamedTuple

from pricing.routes.candidate import WorkerKind

OVERHEAD_WINDOW = 63  # requests without a queue in the median overhead, and requests in the percentile of the margin
MAX_OVERHEAD_S = 1.0  # bound of the overhead, in seconds; longer delays are faults, and no constant
QUEUE_WINDOW = 31  # requests in the median queue ratio of a kind of worker: some seconds of a busy worker
MIN_QUEUE_SAMPLES = 5  # requests from which on a queue ratio is used
MIN_QUEUE_RATIO, MAX_QUEUE_RATIO = 0.5, 4.0  # bounds of a queue ratio; beyond them the step costs are wrong
QUEUED_RATIO = 1.25
"""Predicted time to first token, in multiples of the prompt's own computation, above which a prompt meets a queue."""
MAX_KINDS = 64  # kinds of workers whose queue ratios are kept; the least recently used one is dropped
PRIOR_MARGIN, MIN_MARGIN, MAX_MARGIN = 1.2, 1.1, 2.5  # margin before it is known, and its bounds
MARGIN_QUANTILES = 5
"""The margin is the last of these quantiles, the 80th percentile. In `benchmarks/simulated/disturbed_start.py` the 95th
keeps 1 to 3% more promises, and makes a tenth less goodput, but for a fourfold overload."""
MIN_MARGIN_SAMPLES = 20  # requests from which on the margin is known
MIN_MARGIN_SECONDS = 0.5
"""Expected seconds to a first token from which on a request counts for the margin: objectives are about as long."""
REFUSAL_DECAY = 0.98  # factor by which each refusal lowers the weight of the correction
MIN_COST_STEPS = 8  # steps behind a worker's costs from which on predictions from them are compared with first tokens


class Forecast(NamedTuple):
    """Prediction of a request's first token from the workers' costs."""

    kind: WorkerKind  # of the worker that computes the prompt
    seconds: float  # T
    alone: float  # s of the prompt's own computation
    cost_steps: int = MIN_COST_STEPS  # steps that the worker's costs were learned from

    @property
    def queued(self) -> bool:
        return self.seconds > QUEUED_RATIO * self.alone


class FirstTokenCorrection:
    """Learns the terms of the correction from measured first tokens."""

    def __init__(self) -> None:
        self.overhead = 0.0  # b, s
        self._weight = 1.0  # w
        self._margin = PRIOR_MARGIN
        self._late: deque[float] = deque(maxlen=OVERHEAD_WINDOW)  # s, measured - predicted, without a queue
        self._queues: OrderedDict[WorkerKind, deque[float]] = OrderedDict()  # measured / predicted, in a queue
        self._errors: deque[float] = deque(maxlen=OVERHEAD_WINDOW)  # measured / expected

    @property
    def margin(self) -> float:
        """Returns the factor within which most measured times stay of the expected times."""
        return max(MIN_MARGIN, 1 + self._weight * (self._margin - 1))

    def expected(self, forecast: Forecast) -> float:
        """Returns the seconds after which a first token is expected."""
        correction = self.overhead + (self._queue_ratio(forecast) - 1) * forecast.seconds
        return forecast.seconds + self._weight * correction

    def learn(self, forecast: Forecast, expected: float, measured: float) -> None:
        """Takes a first token that came `measured` s after its request was sent, where `expected` s were expected."""
        self._weight = 1.0
        if forecast.cost_steps < MIN_COST_STEPS:
            return
        if expected >= MIN_MARGIN_SECONDS:
            self._errors.append(measured / expected)
            if len(self._errors) >= MIN_MARGIN_SAMPLES:
                self._margin = min(MAX_MARGIN, quantiles(self._errors, n=MARGIN_QUANTILES, method="inclusive")[-1])
        if not forecast.queued:
            self._late.append(measured - forecast.seconds)
            self.overhead = min(MAX_OVERHEAD_S, max(0.0, median(self._late)))
            return
        ratios = self._queues.setdefault(forecast.kind, deque(maxlen=QUEUE_WINDOW))
        ratios.append(max(0.0, measured - self.overhead) / forecast.seconds)
        self._queues.move_to_end(forecast.kind)
        if len(self._queues) > MAX_KINDS:
            self._queues.popitem(last=False)

    def refused(self) -> None:
        """Records that a request was refused because of its expected time."""
        self._weight *= REFUSAL_DECAY

    def _queue_ratio(self, forecast: Forecast) -> float:
        known = self._queues.get(forecast.kind, ()) if forecast.queued else ()
        if len(known) < MIN_QUEUE_SAMPLES:
            return 1.0
        return min(MAX_QUEUE_RATIO, max(MIN_QUEUE_RATIO, median(known)))
