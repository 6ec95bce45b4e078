"""Measures how long a device is idle, and which kernels and copies take its time, by the profiler's record of them."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

MAX_DEVICE_GAP_S = 5e-6
"""s; shorter gaps are the device's own, between the kernels of one step."""


class Ran(NamedTuple):
    """One kernel or copy, with its beginning and end in s."""

    name: str
    begin: float
    end: float


class Idle(NamedTuple):
    """Shares of the time from the first kernel to the end of the last: gaps that wait for the host, and all."""

    waiting: float
    all: float


class KernelTime(NamedTuple):
    """How often a kernel ran, and the seconds that it took in all."""

    name: str
    calls: int
    seconds: float


def idle_share(ran: Iterable[Ran]) -> Idle:
    ordered = sorted((each.begin, each.end) for each in ran)
    first, busy_until = ordered[0]
    waiting = every = 0.0
    for begin, end in ordered:
        gap = max(0.0, begin - busy_until)
        every += gap
        waiting += gap if gap > MAX_DEVICE_GAP_S else 0.0
        busy_until = max(busy_until, end)
    span = busy_until - first
    return Idle(waiting / span, every / span)


def by_kernel(ran: Iterable[Ran]) -> list[KernelTime]:
    found: dict[str, tuple[int, float]] = {}
    for each in ran:
        calls, seconds = found.get(each.name, (0, 0.0))
        found[each.name] = (calls + 1, seconds + each.end - each.begin)
    times = (KernelTime(name, calls, seconds) for name, (calls, seconds) in found.items())
    return sorted(times, key=lambda each: -each.seconds)


def watched(work: Callable[[], object]) -> list[Ran]:
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    events: Any = found.events()
    ran = [event for event in events if event.device_type.name == "CUDA"]
    return [Ran(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6) for event in ran]  # µs
