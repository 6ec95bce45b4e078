"""Finds the highest rate of requests at which a server keeps its promises: doubles until it breaks them, then bisects.

*Attainment* is the share of requests that meet TTFT and TPOT. *Goodput* is rate x attainment at the highest rate whose
attainment is at least 90%, as DistServe defines it (Zhong et al., 2024).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.load import Result
from contracts.slo import SLO, percentile

MIN_ATTAINMENT = 0.9
MAX_DOUBLINGS = 12
"""From the first rate, up or down; beyond them the load generator is the limit."""


class Trial(NamedTuple):
    """A server's figures under one rate: ms, of the requests that were answered; TPOT without single tokens."""

    rate: float
    attainment: float
    ttft: tuple[float, float]  # p50, p99
    tpot: tuple[float, float]
    errors: int

    @property
    def passed(self) -> bool:
        return self.attainment >= MIN_ATTAINMENT

    @property
    def goodput(self) -> float:
        return self.rate * self.attainment


def trial_of(rate: float, results: Sequence[Result], slo: SLO) -> Trial:
    answered = [result.timings for result in results if result.timings is not None]
    ttfts = [timings.ttft_ms for timings in answered]
    tpots = [timings.tpot_ms() for timings in answered if timings.output_tokens > 1]
    return Trial(
        rate,
        sum(slo.met_by(timings) for timings in answered) / len(results),
        (percentile(ttfts, 0.5), percentile(ttfts, 0.99)),
        (percentile(tpots, 0.5), percentile(tpots, 0.99)),
        len(results) - len(answered),
    )


def search(measure: Callable[[float], Trial], first: float, bisections: int) -> Iterator[Trial]:
    trial = measure(first)
    yield trial
    begins_good, good, bad = trial.passed, 0.0, float("inf")
    for _ in range(MAX_DOUBLINGS):
        if trial.passed:
            good = trial.rate
        else:
            bad = trial.rate
        if trial.passed != begins_good:
            break
        trial = measure(2 * trial.rate if begins_good else trial.rate / 2)
        yield trial
    if not 0 < good < bad < float("inf"):
        return
    for _ in range(bisections):
        trial = measure((good + bad) / 2)
        yield trial
        good, bad = (trial.rate, bad) if trial.passed else (good, trial.rate)


def best(trials: Sequence[Trial]) -> Trial | None:
    return max((trial for trial in trials if trial.passed), key=lambda trial: trial.rate, default=None)
