"""The load that a plan has to bear, as figures of its requests, and how long a request waits for a free worker."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean

from msgspec import Struct

from pricing.step_costs.steps import StepWork, pairs_of


class PromptSize(Struct, frozen=True):
    """A prompt: `cached` tokens that a prefix cache has, and the tokens behind them, which are computed."""

    tokens: int
    cached: int = 0

    @property
    def work(self) -> StepWork:
        return StepWork(prompt_tokens=self.tokens, pairs=pairs_of(self.cached, self.tokens))


class PlannedLoad(Struct, frozen=True, kw_only=True):
    """Requests per second at the peak and on average, lengths in tokens; `share` of the requests keep the limits."""

    rate: float
    mean_rate: float
    prompts: Sequence[PromptSize]
    """A sample of the requests' prompts."""
    output_tokens: float
    """Mean."""
    longest: int
    """Prompt and answer of the longest request."""
    ttft_s: float
    tpot_s: float
    share: float = 0.9

    @property
    def prompt_tokens(self) -> float:
        """Mean length of a prompt, cached tokens included."""
        return fmean(prompt.tokens + prompt.cached for prompt in self.prompts)

    @property
    def mean_context(self) -> float:
        """Mean tokens of a sequence while it decodes."""
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def spread(self) -> float:
        """Standard deviations above the mean that `share` of a normal distribution stays below."""
        return NormalDist().inv_cdf(self.share)


class ServiceTimes(Struct, frozen=True):
    """Seconds that a worker is busy with a request: mean, squared coefficient of variation, and a high quantile."""

    mean: float
    variation: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float], share: float) -> "ServiceTimes":
        mean, ordered = fmean(seconds), sorted(seconds)
        variance = fmean((each - mean) ** 2 for each in seconds)
        high = ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
        return cls(mean, variance / mean**2, high)


def waiting_s(times: ServiceTimes, rate: float, workers: int, share: float) -> float:
    """Estimates how long `share` of Poisson arrivals wait for one of `workers` at most; infinite for too high a rate.

    The mean is (1 + v) / 2 of that of M/M/c (Allen and Cunneen), which is taken as m r^(sqrt(2 (c + 1)) - 1) / (c (1 -
    r)) with r the load of a worker (Sakasegawa, 1977). The tail counts as exponential.
    """
    load = rate * times.mean / workers
    if load >= 1:
        return math.inf
    exponent = math.sqrt(2 * (workers + 1)) - 1.0
    mean = (1 + times.variation) / 2 * times.mean * math.pow(load, exponent) / (workers * (1 - load))
    return -math.log(1 - share) * mean
