"""Figures of a load, as a struct that is written as JSON and read back."""

import math
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from contracts.slo import SLO
from workloads.figures import LoadFigures
from workloads.log_counts import LogCounts
from workloads.outcome import RequestOutcome

REPORT_FORM = 1
"""Version of the JSON form; docs/foresight.md describes it."""
CONFIDENCE_Z = 1.96
"""Quantile of the normal distribution for a confidence of 95%."""


class Percentiles(Struct, frozen=True):
    """Mean and percentiles (nearest rank, within `RELATIVE_ERROR`) of a figure; zeros if nothing was measured."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Missed(Struct, frozen=True):
    """Number of answers that missed the objective, by the missed limit."""

    ttft: int = 0
    tpot: int = 0
    both: int = 0


class Report(Struct, frozen=True, kw_only=True):
    """Figures of one load: times in ms, rates per second of the load's duration."""

    form: int = REPORT_FORM
    server: str
    model: str
    load: dict[str, str]
    """Options of the command that differ from their defaults."""
    slo: SLO
    seconds: float
    interrupted: bool = False
    requests: int
    answered: int
    good: int
    undecided: int = 0
    """Number of answers that may be good or not, depending on delays of the load generator itself."""
    missed: Missed
    errors: dict[str, int] = field(default_factory=dict)
    requests_per_s: float
    goodput_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    cached_share: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    e2e_ms: Percentiles
    late_ms: Percentiles
    """How long after its time each request was sent: the load generator's own lateness."""

    @property
    def good_share(self) -> float:
        return self.good / self.requests if self.requests else 0.0


def make_report(
    outcomes: Iterable[RequestOutcome],
    slo: SLO,
    *,
    server: str,
    model: str,
    load: dict[str, str],
    interrupted: bool = False,
) -> Report:
    """Sums up the outcomes of a load whose first request was due at 0 s."""
    figures = LoadFigures(slo=slo)
    for each in outcomes:
        figures.add(each)
    return report_of(figures, server=server, model=model, load=load, interrupted=interrupted)


def report_of(
    figures: LoadFigures, *, server: str, model: str, load: dict[str, str], interrupted: bool = False
) -> Report:
    """Returns the report of the figures so far."""
    seconds = figures.ended_s or 1.0
    return Report(
        server=server,
        model=model,
        load=load,
        slo=figures.slo,
        seconds=seconds,
        interrupted=interrupted,
        requests=figures.requests,
        answered=figures.answered,
        good=figures.good,
        undecided=figures.undecided,
        missed=Missed(*(figures.missed.get(which, 0) for which in Missed.__struct_fields__)),
        errors=dict(Counter(figures.errors).most_common()),
        requests_per_s=figures.answered / seconds,
        goodput_per_s=figures.good / seconds,
        output_tokens_per_s=figures.output_tokens / seconds,
        prompt_tokens_per_s=figures.prompt_tokens / seconds,
        cached_share=figures.cached_tokens / figures.prompt_tokens if figures.prompt_tokens else 0.0,
        ttft_ms=percentiles(figures.ttft_ms),
        tpot_ms=percentiles(figures.tpot_ms),
        itl_ms=percentiles(figures.itl_ms),
        e2e_ms=percentiles(figures.e2e_ms),
        late_ms=percentiles(figures.late_ms),
    )


def percentiles(values: LogCounts) -> Percentiles:
    p50, p90, p95, p99 = values.percentiles(0.5, 0.9, 0.95, 0.99)
    return Percentiles(values.mean, p50, p90, p95, p99, values.largest)


def share_interval(good: int, requests: int) -> tuple[float, float]:
    """Returns the shares between which the true share of good requests lies with 95% confidence (Wilson, 1927)."""
    if not requests:
        return 0.0, 1.0
    share, z2 = good / requests, CONFIDENCE_Z**2
    middle = (share + z2 / (2 * requests)) / (1 + z2 / requests)
    half = CONFIDENCE_Z / (1 + z2 / requests) * math.sqrt(share * (1 - share) / requests + z2 / (4 * requests**2))
    return max(0.0, middle - half), min(1.0, middle + half)
