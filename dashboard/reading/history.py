"""Figures of any window: from the records of requests where they reach back far enough, else from the intervals.

Redis keeps the newest 10,000 requests, and a sum of each half minute for days. Sums know latencies to 12%. Pure.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dashboard.reading import figures
from dashboard.reading.figures import Bucket, Glance, Outcome, Spread
from dashboard.reading.source import Snapshot
from infra.redis.records import INTERVAL_S, LATENCY_STEPS, IntervalRecord, StatsSample
from infra.redis.registry import MAX_FINISHED

SAMPLES_SPAN_S = 300.0  # windows up to this length show the workers' own samples


class LoadPoint(NamedTuple):
    """Mean load of a role in one part of the window."""

    age: float  # of the part's middle, s relative to now
    role: str
    kv_used: float  # share of KV blocks, 0 to 1
    waiting: float  # sequences


def reaches(snapshot: Snapshot, window: float) -> bool:
    """Returns whether the records of requests cover the window."""
    kept = snapshot.finished
    return len(kept) < MAX_FINISHED or kept[0].ended_at <= snapshot.now - window


def glance(snapshot: Snapshot, window: float) -> Glance:
    """Returns the figures of the first line."""
    now = snapshot.now
    if reaches(snapshot, window):
        return figures.glance(snapshot.finished, now, window)
    recent = within(snapshot, window)
    counts = _counts(recent)
    begun = min((one.ended_at for one in recent), default=now) - INTERVAL_S
    span = max(INTERVAL_S, min(window, now - begun))
    return Glance(
        counts,
        counts[Outcome.GOOD] / span,
        _spread(one.ttft for one in recent),
        _spread(one.tpot for one in recent),
        sum(one.prompt_tokens for one in recent),
        sum(one.cached_tokens for one in recent),
    )


def timeline(snapshot: Snapshot, window: float, intervals: int) -> list[Bucket]:
    """Returns `intervals` equal parts of the window, oldest first."""
    now = snapshot.now
    if reaches(snapshot, window):
        return figures.timeline(snapshot.finished, now, window, intervals)
    width = window / intervals
    running = int(now // width)
    parts: list[list[IntervalRecord]] = [[] for _ in range(intervals)]
    for one in within(snapshot, window):
        back = running - int((one.ended_at - INTERVAL_S / 2) // width)
        if 0 <= back < intervals:
            parts[back].append(one)
    return [
        Bucket(-back * width, _counts(part), _spread(one.ttft for one in part), _spread(one.tpot for one in part))
        for back, part in reversed(list(enumerate(parts)))
    ]


def within(snapshot: Snapshot, window: float) -> list[IntervalRecord]:
    return [one for one in snapshot.intervals if one.ended_at > snapshot.now - window]


def load(snapshot: Snapshot, window: float, intervals: int) -> list[LoadPoint]:
    """Returns the load of each role: from the workers' samples in a short window, else from the gateways' sums.

    Several gateways see the same workers: their means are averaged.
    """
    width = window / intervals
    parts: dict[tuple[int, str], list[tuple[float, float]]] = {}
    if window <= SAMPLES_SPAN_S:
        for second, role, used, waiting in _by_second(snapshot.samples):
            parts.setdefault((int((snapshot.now - second) // width), role), []).append((used, waiting))
    else:
        for one in within(snapshot, window):
            back = int((snapshot.now - one.ended_at) // width)
            for role, use in one.roles.items():
                parts.setdefault((back, role), []).append((use.kv_used, use.waiting))
    return [
        LoadPoint(-(back + 0.5) * width, role, _mean([used for used, _ in seen]), _mean([w for _, w in seen]))
        for (back, role), seen in sorted(parts.items(), reverse=True)
        if 0 <= back < intervals
    ]


def _by_second(samples: Mapping[str, Sequence[StatsSample]]) -> list[tuple[int, str, float, float]]:
    """Returns (second, role, share of used blocks, waiting sequences) over all workers of a role."""
    sums: dict[tuple[int, str], Counter[str]] = {}
    for life in samples.values():
        for sample in life:
            at = sums.setdefault((int(sample.at), sample.role), Counter())
            load = sample.load
            at.update(used=load.blocks_used, total=load.blocks_total, waiting=load.waiting)
    return [(at, role, one["used"] / (one["total"] or 1), one["waiting"]) for (at, role), one in sums.items()]


def _counts(intervals: Iterable[IntervalRecord]) -> dict[Outcome, int]:
    counts = dict.fromkeys(Outcome, 0)
    for one in intervals:
        for name, count in one.outcomes.items():
            counts[Outcome(name)] += count
    return counts


def _spread(histograms: Iterable[Mapping[int, int]]) -> Spread | None:
    """Returns percentiles of buckets' counts: the bounds of the buckets that they lie in."""
    counts: Counter[int] = Counter()
    for one in histograms:
        counts.update(one)
    if not counts:
        return None
    return Spread(*(_percentile(counts, share) for share in (0.5, 0.95, 0.99)))


def _percentile(counts: Counter[int], share: float) -> float:
    rank, seen = share * counts.total(), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return math.pow(10.0, bucket / LATENCY_STEPS)
    raise AssertionError("the last bucket reaches the whole")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
