"""Finds the highest rate of requests at which a server keeps its promises: doubles until it breaks them, then bisects.

The *good share* of a rate is the share of its requests that meet TTFT and TPOT. *Goodput* is rate x good share at the
highest rate whose good share is at least 90%, as DistServe defines it (Zhong et al., 2024).
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from workloads.report import Report, share_interval

MIN_GOOD_SHARE = 0.9
MAX_DOUBLINGS = 12
"""Most doublings or halvings of the first rate; beyond them the load generator is the limit."""


class Trial(Struct, frozen=True):
    """A server's report at one rate, requests/s, and the good share that the search demands."""

    rate: float
    report: Report
    wanted_share: float = MIN_GOOD_SHARE

    @property
    def passed(self) -> bool:
        return self.report.good_share >= self.wanted_share

    @property
    def goodput(self) -> float:
        return self.rate * self.report.good_share

    @property
    def sure(self) -> bool:
        """Whether chance alone could not have moved the good share over the wanted share, with 95% confidence."""
        low, high = share_interval(self.report.good, self.report.requests)
        return not low < self.wanted_share < high


def search(measure: Callable[[float], Trial], first_rate: float, bisections: int) -> Iterator[Trial]:
    trial = measure(first_rate)
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
