"""Measures of a running front: processor time of a token, its delay, and the wait for a first token."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct

from benchmarks.front.client import Seen
from benchmarks.front.system import Begin, Shape, front
from contracts.errors import BatonError
from contracts.slo import percentile

WARM_UP_S = 2.0  # s that streams run before the gateway's time is taken


class Delivered(Struct, frozen=True):
    """Delivered tokens of a run, and their cost for the gateways."""

    streams: int
    tokens_per_core_second: float  # in a window in which all streams ran
    core: float  # cores that the gateways used in that window
    tokens_per_event: float  # over the whole run
    delay_p50_ms: float  # from making to receipt, of tokens made in the window
    delay_p99_ms: float
    missing: int  # tokens that were made for streams and did not come


def delivered(begin: Begin, api: str, streams: int, rate: float, seconds: float, shape: Shape) -> Delivered:
    tokens = int(rate * (WARM_UP_S + seconds + streams / 400 + 6))  # streams are begun meanwhile
    with begin(shape) as system:
        with system.client(api, streams, tokens) as saw:
            time.sleep(WARM_UP_S)
            began, spent = time.monotonic(), system.processor_seconds()
            time.sleep(seconds)
            ended, spent = time.monotonic(), system.processor_seconds() - spent
            seen = saw()
        made = system.stop_workers()
    counted = sum(_until(one, ended) - _until(one, began) for one in seen)
    late = delays(seen, made, began, ended)
    return Delivered(
        streams=streams,
        tokens_per_core_second=counted / spent,
        core=spent / (ended - began),
        tokens_per_event=sum(one.tokens[-1] for one in seen if one.tokens) / sum(len(one.times) for one in seen),
        delay_p50_ms=1000 * percentile(late, 0.5),
        delay_p99_ms=1000 * percentile(late, 0.99),
        missing=sum(tokens - (one.tokens[-1] if one.tokens else 0) for one in seen),
    )


def added(checkout: Path, api: str, requests: int) -> float:
    """Returns the median time to the first token, ms, one request at a time, where workers answer at once."""
    with front(checkout, Shape(pause=0.0)) as system, system.client(api, requests, 1, together=1) as saw:
        seen = saw()
    waits = [one.times[0] - one.asked for one in seen if one.times]
    if len(waits) < requests:
        raise BatonError(f"{requests - len(waits)} of {requests} requests had no answer")
    return 1000 * median(waits[requests // 10 :])  # without the first requests, which warm up


def delays(seen: Sequence[Seen], made: Mapping[str, Sequence[float]], begin: float, end: float) -> list[float]:
    """Returns the delay from making to receipt of each token made in a window, s."""
    found = []
    for one in seen:
        begins, before = made[one.request], 0
        for at, count in zip(one.times, one.tokens, strict=True):
            found += [at - begins[index] for index in range(before, count) if begin <= begins[index] < end]
            before = count
    return found


def _until(seen: Seen, end: float) -> int:
    return max((count for at, count in zip(seen.times, seen.tokens, strict=True) if at <= end), default=0)
