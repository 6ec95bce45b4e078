"""Counts what was not good: by missed limit and by error, by tenant, and under other limits. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from contracts.slo import Objective
from dashboard.reading.figures import Outcome, judge
from dashboard.reading.history import reaches, within
from dashboard.reading.source import Snapshot
from infra.redis.records import FinishedRecord, TenantUse

MISSED_WORDS = {
    "ttft": "late: first token after its limit",
    "tpot": "late: tokens slower than their limit",
    "both": "late: first token and pace beyond their limits",
    "none": "late: one of several answers was beyond a limit",
}


class Badput(NamedTuple):
    """Requests of one kind that were not good."""

    outcome: Outcome
    why: str
    requests: int


class WhatIf(NamedTuple):
    """Requests as they would have been judged by other limits, had they taken the same time."""

    good: int
    judged: int


def badput(snapshot: Snapshot, window: float) -> list[Badput]:
    """Returns what was late, failed or refused in the window, the most frequent first."""
    counts: Counter[tuple[Outcome, str]] = Counter()
    if reaches(snapshot, window):
        for record in recent(snapshot, window):
            outcome = judge(record)
            if outcome is Outcome.LATE:
                counts[outcome, MISSED_WORDS[record.objective.missed(record.ttft_ms, record.tpot_ms)]] += 1
            elif outcome in (Outcome.FAILED, Outcome.REFUSED):
                counts[outcome, record.reason] += 1
    else:
        for one in within(snapshot, window):
            for missed, count in one.missed.items():
                counts[Outcome.LATE, MISSED_WORDS.get(missed, missed)] += count
            for outcome, reasons in ((Outcome.FAILED, one.failed), (Outcome.REFUSED, one.refused)):
                for reason, count in reasons.items():
                    counts[outcome, reason] += count
    return [Badput(outcome, why, count) for (outcome, why), count in counts.most_common()]


def what_if(snapshot: Snapshot, window: float, objective: Objective) -> WhatIf:
    """Judges the kept records of the window by `objective`; requests that failed stay bad."""
    judged = [one for one in recent(snapshot, window) if one.outcome in ("finished", "failed")]
    kept = [one for one in judged if one.outcome == "finished"]
    return WhatIf(sum(objective.missed(one.ttft_ms, one.tpot_ms) == "none" for one in kept), len(judged))


def tenants(snapshot: Snapshot, window: float) -> dict[str, TenantUse]:
    """Returns the use of each tenant in the window, the heaviest first; empty for gateways without keys."""
    found: dict[str, list[TenantUse]] = {}
    if reaches(snapshot, window):
        for record in recent(snapshot, window):
            if record.tenant:
                use = TenantUse(1, int(record.good), record.prompt_tokens, record.output_tokens)
                found.setdefault(record.tenant, []).append(use)
    else:
        for one in within(snapshot, window):
            for tenant, use in one.tenants.items():
                found.setdefault(tenant, []).append(use)
    summed = {tenant: _sum(uses) for tenant, uses in found.items()}
    heavy = sorted(summed, key=lambda name: -(summed[name].prompt_tokens + summed[name].output_tokens))
    return {name: summed[name] for name in heavy}


def recent(snapshot: Snapshot, window: float) -> Sequence[FinishedRecord]:
    return [record for record in snapshot.finished if record.ended_at > snapshot.now - window]


def _sum(uses: Sequence[TenantUse]) -> TenantUse:
    return TenantUse(
        sum(use.requests for use in uses),
        sum(use.good for use in uses),
        sum(use.prompt_tokens for use in uses),
        sum(use.output_tokens for use in uses),
    )
