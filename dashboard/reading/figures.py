"""Computes the page's metrics from records. Pure, with time as an argument; definitions: `docs/design.md`, Words."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import takewhile
from typing import NamedTuple

from contracts.slo import percentile
from infra.redis.records import FinishedRecord, GatewayRecord, StatsSample

MIN_SPAN_S = 5.0  # of a rate
RATE_SPAN_S = 10.0  # of token rates
RECENT_SPAN_S = 60.0  # of a worker's recent sharing


class Outcome(Enum):
    """Outcome of a request, as the gateway judged it.

    Cancelled requests say nothing about the service; refused requests do not count in the share of good requests.
    """

    GOOD = "good"
    LATE = "late"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


class Spread(NamedTuple):
    """Percentiles, in ms."""

    p50: float
    p95: float
    p99: float


class Glance(NamedTuple):
    """Metrics of the page's first line. Rates are per second since the first request in the window."""

    counts: dict[Outcome, int]
    goodput: float  # req/s
    ttft: Spread | None
    tpot: Spread | None
    prompt_tokens: int  # of requests with at least one output token
    cached_tokens: int  # prompt tokens whose KV was in the cache

    def judged(self) -> int:
        return sum(self.counts[verdict] for verdict in (Outcome.GOOD, Outcome.LATE, Outcome.FAILED))

    def good_share(self) -> float | None:
        """Returns the share of good requests among judged requests, or None without judged requests."""
        judged = self.judged()
        return self.counts[Outcome.GOOD] / judged if judged else None

    def cached_share(self) -> float | None:
        """Returns the share of prompt tokens found in the cache, or None without prompts."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class Bucket(NamedTuple):
    """One interval of the time line."""

    age: float  # end in seconds relative to the current interval: 0, -5, -10 …
    counts: dict[Outcome, int]
    ttft: Spread | None
    tpot: Spread | None


class RequestCounts(NamedTuple):
    """Numbers of requests in progress."""

    waiting: int
    prefill: int
    decode: int
    at_gate: int = 0  # part of `waiting`: not sent to a worker yet


class TokenRates(NamedTuple):
    """Rates per second, over all workers."""

    prompt_tokens: float
    output_tokens: float
    handoff_bytes: float


class Sharing(NamedTuple):
    """A worker's prefix cache and preemptions in the last `RECENT_SPAN_S`."""

    queried_tokens: int
    found_tokens: int
    preemptions: int


class Stage(NamedTuple):
    """A stage of a request."""

    name: str
    ms: float  # duration
    share: float  # of the request's duration, 0 to 1, in which only this stage ran


def judge(record: FinishedRecord) -> Outcome:
    return Outcome(record.judged())


def glance(records: Sequence[FinishedRecord], now: float, window: float) -> Glance:
    """Summarizes requests that ended in the last `window` seconds; `records` are in the order of their ends."""
    recent = _recent(records, now - window)
    counts = _counts(recent)
    first = min((record.ended_at - record.e2e_ms / 1000 for record in recent), default=now)
    span = min(window, max(MIN_SPAN_S, now - first))
    begun = [record for record in recent if record.output_tokens > 0]  # other prompts may never have been looked up
    prompt, cached = sum(record.prompt_tokens for record in begun), sum(record.cached_tokens for record in begun)
    return Glance(counts, counts[Outcome.GOOD] / span, _ttft(recent), _tpot(recent), prompt, cached)


def timeline(records: Sequence[FinishedRecord], now: float, window: float, intervals: int = 60) -> list[Bucket]:
    """Summarizes `intervals` equal parts of the window, oldest first. Their edges stay fixed as time passes."""
    width = window / intervals
    running = int(now // width)
    parts: dict[int, list[FinishedRecord]] = {back: [] for back in range(intervals)}
    for record in _recent(records, (running - intervals + 1) * width):
        back = max(0, running - int(record.ended_at // width))  # another host's clock may be a little ahead
        if back in parts:
            parts[back].append(record)
    return [Bucket(-back * width, _counts(part), _ttft(part), _tpot(part)) for back, part in reversed(parts.items())]


def progress(gateways: Sequence[GatewayRecord]) -> RequestCounts:
    states = [request.state for gateway in gateways for request in gateway.requests]
    at_gate = sum(gateway.waiting for gateway in gateways)
    return RequestCounts(states.count("queued"), states.count("prefill"), states.count("decode"), at_gate)


def refused(gateways: Sequence[GatewayRecord]) -> dict[str, int]:
    """Counts answers 429 and 503 since the gateways' starts, by error code."""
    return dict(sum((Counter(gateway.refused) for gateway in gateways), Counter[str]()))


def rates(samples: Iterable[Sequence[StatsSample]], now: float) -> TokenRates:
    """Computes the recent growth of the workers' totals; one sequence of samples for each epoch of a worker."""
    prompt = output = moved = 0.0
    for life in samples:
        ends = _ends(life, now - RATE_SPAN_S)
        if ends is None:
            continue
        old, new, span = ends[0].load, ends[1].load, ends[1].at - ends[0].at
        prompt += (new.prompt_tokens - old.prompt_tokens) / span
        output += (new.output_tokens - old.output_tokens) / span
        moved += (new.handoff_bytes - old.handoff_bytes) / span
    return TokenRates(prompt, output, moved)


def sharing(life: Sequence[StatsSample], now: float) -> Sharing | None:
    """Computes the growth of a worker's totals in the last minute, or None with too few samples."""
    ends = _ends(life, now - RECENT_SPAN_S)
    if ends is None:
        return None
    old, new = ends[0].load, ends[1].load
    return Sharing(
        new.kv.queried_tokens - old.kv.queried_tokens,
        new.kv.found_tokens - old.kv.found_tokens,
        new.preemptions - old.preemptions,
    )


def stages(record: FinishedRecord) -> list[Stage]:
    """Splits a request's duration: waiting and prefill before the first token, handoff and decode after it.

    waiting = TTFT - prefill; handoff counts with the time by which it outlasts prefill. Without an output token, TTFT
    is the whole duration.
    """
    whole = max(record.e2e_ms, 1e-9)
    before = min(record.ttft_ms, whole)
    prefill = min(max(record.prefill_ms, 0.0), before)
    decode = whole - before
    handoff = min(max(record.handoff_ms - record.prefill_ms, 0.0), decode)
    return [
        Stage("waiting", before - prefill, (before - prefill) / whole),
        Stage("prefill", record.prefill_ms, prefill / whole),
        Stage("handoff", record.handoff_ms, handoff / whole),
        Stage("decode", decode, (decode - handoff) / whole),
    ]


def handed_off(record: FinishedRecord) -> bool:
    """Returns whether a decode worker continued a prefill worker's sequence, with or without moved KV."""
    return bool(record.prefill_worker) and (record.handoff_bytes > 0 or record.output_tokens > record.samples)


def handoff_rate(record: FinishedRecord) -> float | None:
    """Returns bytes per second of the time in which KV was ready or in transit; None without moved KV."""
    return 1000 * record.handoff_bytes / record.send_ms if record.handoff_bytes and record.send_ms > 0 else None


def _ends(life: Sequence[StatsSample], since: float) -> tuple[StatsSample, StatsSample] | None:
    """Returns the first and last sample from `since` on, or None if they are the same."""
    recent = [sample for sample in life if sample.at >= since]
    return (recent[0], recent[-1]) if recent and recent[0].at < recent[-1].at else None


def _recent(records: Sequence[FinishedRecord], since: float) -> list[FinishedRecord]:
    """Returns the records that ended after `since`, reading from the end."""
    found: deque[FinishedRecord] = deque()
    found.extendleft(takewhile(lambda record: record.ended_at > since, reversed(records)))
    return list(found)


def _counts(records: Iterable[FinishedRecord]) -> dict[Outcome, int]:
    counts = dict.fromkeys(Outcome, 0)
    for record in records:
        counts[judge(record)] += 1
    return counts


def _ttft(records: Iterable[FinishedRecord]) -> Spread | None:
    return _spread([record.ttft_ms for record in records if record.output_tokens > 0])


def _tpot(records: Iterable[FinishedRecord]) -> Spread | None:
    return _spread([record.tpot_ms for record in records if record.output_tokens > 1])


def _spread(values: list[float]) -> Spread | None:
    if not values:
        return None
    return Spread(percentile(values, 0.5), percentile(values, 0.95), percentile(values, 0.99))
