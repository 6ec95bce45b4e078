"""Sums of a load's outcomes in bounded memory, whether they are measured or simulated."""

from itertools import repeat

from msgspec import Struct, field, structs

from contracts.slo import SLO, Objective, Timings
from workloads.log_counts import LogCounts
from workloads.outcome import RequestOutcome

MAX_ERRORS_NAMED = 100
"""Number of different error texts that are counted each; further errors are counted together."""
OTHER_ERRORS = "other errors"
COUNT_NAMES = ("requests", "answered", "good", "undecided", "output_tokens", "prompt_tokens", "cached_tokens")
SPREAD_NAMES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "late_ms")


class LoadFigures(Struct, kw_only=True):
    """Sums over the requests that have ended; no request is kept. `ended_s`: the end of the last one."""

    slo: SLO
    ended_s: float = 0.0
    requests: int = 0
    answered: int = 0
    good: int = 0
    undecided: int = 0
    missed: dict[str, int] = {}
    errors: dict[str, int] = {}
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: LogCounts = field(default_factory=LogCounts)
    tpot_ms: LogCounts = field(default_factory=LogCounts)
    itl_ms: LogCounts = field(default_factory=LogCounts)
    e2e_ms: LogCounts = field(default_factory=LogCounts)
    late_ms: LogCounts = field(default_factory=LogCounts)

    def add(self, outcome: RequestOutcome) -> None:
        """Adds a request that has ended."""
        self.requests += 1
        self.ended_s = max(self.ended_s, outcome.ended_s)
        self.late_ms.add(max(0.0, 1000 * (outcome.sent_s - outcome.due_s)))
        if outcome.error:
            self._failed(outcome.error)
        timings = outcome.timings
        if timings is None:
            return
        self.answered += 1
        tpot_ms = timings.tpot_ms()
        missed = Objective(self.slo.ttft_ms, self.slo.tpot_ms).missed(timings.ttft_ms, tpot_ms)
        if missed == "none":
            self.good += 1
        else:
            self.missed[missed] = self.missed.get(missed, 0) + 1
        if any(outcome.own_delays_ms):
            self.undecided += _undecided(self.slo, timings, *outcome.own_delays_ms)
        self.output_tokens += timings.output_tokens
        self.prompt_tokens += outcome.prompt_tokens
        self.cached_tokens += outcome.cached_tokens
        self.ttft_ms.add(timings.ttft_ms)
        if timings.output_tokens > 1:
            self.tpot_ms.add(tpot_ms)
        for gap_ms, count in zip(outcome.gaps_ms, outcome.gap_counts or repeat(1), strict=False):
            self.itl_ms.add(gap_ms, count)
        self.e2e_ms.add(timings.e2e_ms)

    def merge(self, other: "LoadFigures") -> None:
        """Adds other requests of the same load, which were summed up elsewhere."""
        self.ended_s = max(self.ended_s, other.ended_s)
        for name in COUNT_NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for which, count in other.missed.items():
            self.missed[which] = self.missed.get(which, 0) + count
        for error, count in other.errors.items():
            self._failed(error, count)
        for name in SPREAD_NAMES:
            getattr(self, name).merge(getattr(other, name))

    def _failed(self, error: str, count: int = 1) -> None:
        named = error if error in self.errors or len(self.errors) < MAX_ERRORS_NAMED else OTHER_ERRORS
        self.errors[named] = self.errors.get(named, 0) + count


def _undecided(slo: SLO, timings: Timings, first_ms: float, last_ms: float) -> bool:
    """Returns whether delays of the client, up to these, decide whether an answer is good."""
    early = structs.replace(timings, ttft_ms=timings.ttft_ms - first_ms, e2e_ms=timings.e2e_ms - last_ms)
    at_best = slo.met(early.ttft_ms, structs.replace(early, ttft_ms=timings.ttft_ms).tpot_ms())
    at_worst = slo.met(timings.ttft_ms, structs.replace(early, e2e_ms=timings.e2e_ms).tpot_ms())
    return at_best and not at_worst
