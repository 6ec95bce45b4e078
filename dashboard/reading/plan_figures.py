"""Figures of the page Plan: what tokens cost at an entered price, what fits, and throughput over TPOT lately. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from contracts.slo import percentile
from dashboard.reading.figures import Outcome, judge
from infra.redis.records import FinishedRecord, WorkerRecord


class ThroughputPoint(Struct, frozen=True):
    """An interval of the window: output tokens per second of the requests that ended in it, and their median TPOT."""

    tpot_ms: float
    tokens_per_s: float


def throughput(records: Sequence[FinishedRecord], now: float, window_s: float, intervals: int) -> list[ThroughputPoint]:
    """Returns a point for each interval in which answers of several tokens ended."""
    width = window_s / intervals
    parts: dict[int, list[FinishedRecord]] = {}
    for record in records:
        back = int((now - record.ended_at) // width)
        if 0 <= back < intervals and record.output_tokens > 1:
            parts.setdefault(back, []).append(record)
    return [
        ThroughputPoint(
            percentile([each.tpot_ms for each in part], 0.5), sum(each.output_tokens for each in part) / width
        )
        for _, part in sorted(parts.items(), reverse=True)
    ]


def good_tokens_per_s(records: Sequence[FinishedRecord], now: float, window_s: float) -> float:
    """Returns the output tokens per second of the good requests that ended in the window."""
    good = [each for each in records if each.ended_at > now - window_s and judge(each) is Outcome.GOOD]
    return sum(each.output_tokens for each in good) / window_s


def fitting_sequences(worker: WorkerRecord, length: int) -> int:
    """Returns how many sequences of `length` tokens the worker's KV pool holds."""
    return worker.memory.tokens // length


def kv_bytes(worker: WorkerRecord, sequences: int, length: int) -> int:
    return sequences * length * worker.memory.token_bytes
