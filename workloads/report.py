"""Figures of a load, as a struct that is written as JSON and read again."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from msgspec import Struct, field

from contracts.slo import SLO, Timings, percentile
from workloads.outcome import RequestOutcome

REPORT_FORM = 1
"""Version of the JSON form; docs/foresight.md describes it."""
CONFIDENCE_Z = 1.96
"""Of the normal distribution, for a confidence of 95%."""


class Percentiles(Struct, frozen=True):
    """Mean and percentiles (nearest rank) of a figure; zeros if nothing was measured."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Missed(Struct, frozen=True):
    """Answers over a limit of the objective, by the limit."""

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
    outcomes: Sequence[RequestOutcome],
    slo: SLO,
    *,
    server: str,
    model: str,
    load: dict[str, str],
    interrupted: bool = False,
) -> Report:
    """Sums up the outcomes of a load whose first request was due at 0 s."""
    answered = [(each, each.timings) for each in outcomes if each.timings is not None]
    timings = [timings for _, timings in answered]
    seconds = max((each.ended_s for each in outcomes), default=0.0) or 1.0
    prompt_tokens = sum(each.prompt_tokens for each, _ in answered)
    return Report(
        server=server,
        model=model,
        load=load,
        slo=slo,
        seconds=seconds,
        interrupted=interrupted,
        requests=len(outcomes),
        answered=len(answered),
        good=(good := sum(slo.met_by(each) for each in timings)),
        missed=_missed(timings, slo),
        errors=dict(Counter(each.error for each in outcomes if each.error).most_common()),
        requests_per_s=len(answered) / seconds,
        goodput_per_s=good / seconds,
        output_tokens_per_s=sum(each.output_tokens for each in timings) / seconds,
        prompt_tokens_per_s=prompt_tokens / seconds,
        cached_share=sum(each.cached_tokens for each, _ in answered) / prompt_tokens if prompt_tokens else 0.0,
        ttft_ms=percentiles(each.ttft_ms for each in timings),
        tpot_ms=percentiles(each.tpot_ms() for each in timings if each.output_tokens > 1),
        itl_ms=percentiles(gap for each, _ in answered for gap in each.gaps_ms),
        e2e_ms=percentiles(each.e2e_ms for each in timings),
        late_ms=percentiles(1000 * (each.sent_s - each.due_s) for each in outcomes),
    )


def percentiles(values: Iterable[float]) -> Percentiles:
    shown = sorted(values)
    if not shown:
        return Percentiles()
    p50, p90, p95, p99 = (percentile(shown, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Percentiles(fmean(shown), p50, p90, p95, p99, shown[-1])


def share_interval(good: int, requests: int) -> tuple[float, float]:
    """Returns the shares between which the true share of good requests lies with 95% confidence (Wilson, 1927)."""
    if not requests:
        return 0.0, 1.0
    share, z2 = good / requests, CONFIDENCE_Z**2
    middle = (share + z2 / (2 * requests)) / (1 + z2 / requests)
    half = CONFIDENCE_Z / (1 + z2 / requests) * math.sqrt(share * (1 - share) / requests + z2 / (4 * requests**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _missed(timings: Iterable[Timings], slo: SLO) -> Missed:
    late = Counter((each.ttft_ms > slo.ttft_ms, each.tpot_ms() > slo.tpot_ms) for each in timings)
    return Missed(late[True, False], late[False, True], late[True, True])
