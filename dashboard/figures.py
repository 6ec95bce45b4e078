"""Computes the page's figures from records. Pure: time is an argument; definitions as in `docs/design.md`, Words."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import takewhile
from typing import NamedTuple

from contracts.slo import percentile
from infra.redis.records import FinishedRecord, GatewayRecord, StatsSample

LEAST_SPAN = 5.0  # s; a rate over less says nothing
RATE_SPAN = 10.0  # s that token rates look back
RECENT_SPAN = 60.0  # s that a worker's recent sharing looks back


class Verdict(Enum):
    """Says what a request that ended counts as, by the gateway's judgement.

    A client that went away is no verdict on the service, and a request that was refused at once is not in its goodput.
    """

    GOOD = "good"
    LATE = "late"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


class Spread(NamedTuple):
    """Holds percentiles in ms."""

    p50: float
    p95: float
    p99: float


class Glance(NamedTuple):
    """Holds the first line of the page. Rates are per second since the first request in the window."""

    counts: dict[Verdict, int]
    goodput: float  # req/s
    ttft: Spread | None
    tpot: Spread | None
    prompt_tokens: int  # prompt tokens of the requests that got a token
    cached_tokens: int  # those of them whose KV was in the cache

    def judged(self) -> int:
        """Counts the accepted requests whose client waited for the answer: good, late and failed requests."""
        return sum(self.counts[verdict] for verdict in (Verdict.GOOD, Verdict.LATE, Verdict.FAILED))

    def good_share(self) -> float | None:
        """Returns the share of good requests among the judged requests; None where no request was judged."""
        judged = self.judged()
        return self.counts[Verdict.GOOD] / judged if judged else None

    def cached_share(self) -> float | None:
        """Returns the share of prompt tokens that were found in the cache; None for no prompt."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class Bucket(NamedTuple):
    """Holds one interval of the time line."""

    age: float  # its end in s, counted from the interval that is running now: 0, -5, -10 …
    counts: dict[Verdict, int]
    ttft: Spread | None
    tpot: Spread | None


class Progress(NamedTuple):
    """Counts requests in progress."""

    waiting: int
    prefill: int
    decode: int
    at_gate: int = 0  # of those that wait: they have not begun


class Rates(NamedTuple):
    """Holds rates per second, over all workers."""

    prompt_tokens: float
    output_tokens: float
    handoff_bytes: float


class Sharing(NamedTuple):
    """Counts what a worker's prefix cache and preemption did in the last `RECENT_SPAN` seconds."""

    queried_tokens: int
    found_tokens: int
    preemptions: int


class Stage(NamedTuple):
    """Holds a part of a request's way."""

    name: str
    ms: float  # time that it took
    share: float  # of the whole time, 0 to 1, that passed with it alone


def judge(record: FinishedRecord) -> Verdict:
    """Returns the gateway's judgement: a request is good if it finished and met its own objective."""
    if record.outcome == "finished":
        return Verdict.GOOD if record.good else Verdict.LATE
    return Verdict(record.outcome)


def glance(records: Sequence[FinishedRecord], now: float, window: float) -> Glance:
    """Sums up the requests that ended in the last `window` seconds; `records` are in the order of their ends."""
    recent = _recent(records, now - window)
    counts = _counts(recent)
    first = min((record.ended_at - record.e2e_ms / 1000 for record in recent), default=now)
    span = min(window, max(LEAST_SPAN, now - first))
    begun = [record for record in recent if record.output_tokens > 0]  # the others' prompts may not have been looked up
    prompt, cached = sum(record.prompt_tokens for record in begun), sum(record.cached_tokens for record in begun)
    return Glance(counts, counts[Verdict.GOOD] / span, _ttft(recent), _tpot(recent), prompt, cached)


def timeline(records: Sequence[FinishedRecord], now: float, window: float, intervals: int = 60) -> list[Bucket]:
    """Sums up `intervals` equal parts of the window, oldest first. Their edges stay while time passes over them."""
    width = window / intervals
    running = int(now // width)
    parts: dict[int, list[FinishedRecord]] = {back: [] for back in range(intervals)}
    for record in _recent(records, (running - intervals + 1) * width):
        back = max(0, running - int(record.ended_at // width))  # another host's clock may be a little ahead
        if back in parts:
            parts[back].append(record)
    return [Bucket(-back * width, _counts(part), _ttft(part), _tpot(part)) for back, part in reversed(parts.items())]


def progress(gateways: Sequence[GatewayRecord]) -> Progress:
    """Counts what the gateways have in their hands."""
    states = [request.state for gateway in gateways for request in gateway.requests]
    at_gate = sum(gateway.waiting for gateway in gateways)
    return Progress(states.count("queued"), states.count("prefill"), states.count("decode"), at_gate)


def refused(gateways: Sequence[GatewayRecord]) -> dict[str, int]:
    """Counts what the gateways have answered with 429 or 503 since their starts, by the error's code."""
    return dict(sum((Counter(gateway.refused) for gateway in gateways), Counter[str]()))


def rates(samples: Iterable[Sequence[StatsSample]], now: float) -> Rates:
    """Computes how fast the workers' totals grew in the last seconds; one sequence of samples per life of a worker."""
    prompt = output = moved = 0.0
    for life in samples:
        ends = _ends(life, now - RATE_SPAN)
        if ends is None:
            continue
        old, new, span = ends[0].load, ends[1].load, ends[1].at - ends[0].at
        prompt += (new.prompt_tokens - old.prompt_tokens) / span
        output += (new.output_tokens - old.output_tokens) / span
        moved += (new.handoff_bytes - old.handoff_bytes) / span
    return Rates(prompt, output, moved)


def sharing(life: Sequence[StatsSample], now: float) -> Sharing | None:
    """Computes how a worker's totals grew in the last minute; None where that is not known."""
    ends = _ends(life, now - RECENT_SPAN)
    if ends is None:
        return None
    old, new = ends[0].load, ends[1].load
    return Sharing(
        new.kv.queried_tokens - old.kv.queried_tokens,
        new.kv.found_tokens - old.kv.found_tokens,
        new.preemptions - old.preemptions,
    )


def stages(record: FinishedRecord) -> list[Stage]:
    """Splits a request's time: waiting and prefill up to its first token, then handoff and decode.

    All time before the first token in which no prefill worker computed the prompt is waiting. A handoff has the share
    by which it outlasts prefill. Without a token, TTFT is the whole time.
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
    """Tells whether a decode worker went on with what a prefill worker computed. It may have had all KV before."""
    return bool(record.prefill_worker) and (record.handoff_bytes > 0 or record.output_tokens > record.samples)


def handoff_rate(record: FinishedRecord) -> float | None:
    """Returns bytes per second of the time in which KV was ready to leave or on its way; None where none moved."""
    return 1000 * record.handoff_bytes / record.send_ms if record.handoff_bytes and record.send_ms > 0 else None


def _ends(life: Sequence[StatsSample], since: float) -> tuple[StatsSample, StatsSample] | None:
    """Returns the first and the last sample from `since` on, if there is time between them."""
    recent = [sample for sample in life if sample.at >= since]
    return (recent[0], recent[-1]) if recent and recent[0].at < recent[-1].at else None


def _recent(records: Sequence[FinishedRecord], since: float) -> list[FinishedRecord]:
    """Returns the records that ended after `since`; looks at no more than it has to."""
    found: deque[FinishedRecord] = deque()
    found.extendleft(takewhile(lambda record: record.ended_at > since, reversed(records)))
    return list(found)


def _counts(records: Iterable[FinishedRecord]) -> dict[Verdict, int]:
    counts = dict.fromkeys(Verdict, 0)
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
