"""Finds the highest rate of requests at which a server keeps its promises: doubles until it breaks them, then bisects.

The *good share* of a rate is the share of its requests that meet TTFT and TPOT. *Goodput* is rate x good share at the
highest rate whose good share is at least 90%, as DistServe defines it (Zhong et al., 2024).
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from workloads.report import Report, share_interval

MIN_GOOD_SHARE = 0.9
MAX_DOUBLINGS = 12
"""Most doublings or halvings of the first rate; beyond them the load generator is the limit."""
ALONE_REQUESTS = 0.1
"""Requests in progress on average below which nine of ten Poisson arrivals find none, so that fewer change little."""
MAX_SILENT_TRIALS = 3
"""Rates, one after the other, without a single answer, after which lower rates are not tried."""


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
    def alone(self) -> bool:
        """Whether its requests came one by one, by Little's law, so that a lower rate would not be better."""
        report = self.report
        return bool(report.answered) and report.requests_per_s * report.e2e_ms.mean / 1000 < ALONE_REQUESTS

    @property
    def sure(self) -> bool:
        """Whether chance alone could not have moved the good share over the wanted share, with 95% confidence."""
        low, high = share_interval(self.report.good, self.report.requests)
        return not low < self.wanted_share < high


def search(measure: Callable[[float], Trial], first_rate: float, bisections: int) -> Iterator[Trial]:
    """Yields its trials; ends where a lower rate cannot help: requests come one by one, or none has an answer."""
    trial = measure(first_rate)
    yield trial
    begins_good, good, bad, silent = trial.passed, 0.0, float("inf"), 0
    for _ in range(MAX_DOUBLINGS):
        if trial.passed:
            good = trial.rate
        else:
            bad = trial.rate
        silent = 0 if trial.report.answered else silent + 1
        if trial.passed != begins_good or (not trial.passed and (trial.alone or silent == MAX_SILENT_TRIALS)):
            break
        trial = measure(2 * trial.rate if begins_good else trial.rate / 2)
        yield trial
    if not 0 < good < bad < float("inf"):
        return
    for _ in range(bisections):
        trial = measure((good + bad) / 2)
        yield trial
        good, bad = (trial.rate, bad) if trial.passed else (good, trial.rate)


def best(trials: Iterable[Trial]) -> Trial | None:
    return max((trial for trial in trials if trial.passed), key=lambda trial: trial.rate, default=None)
