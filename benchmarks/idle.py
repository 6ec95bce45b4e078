"""Measures how long a device is idle while it decodes, by the profiler's record of every kernel and copy on it."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

SHORT = 5e-6
"""s; shorter gaps are the device's own, between the kernels of one step."""


class Idle(NamedTuple):
    """Holds shares of the time from the first kernel to the end of the last: gaps that wait for the host, and all."""

    waiting: float
    all: float


def idle_share(intervals: Iterable[tuple[float, float]]) -> Idle:
    """Computes the share from the beginnings and ends of what ran, in s and any order; streams may overlap."""
    ordered = sorted(intervals)
    first, busy_until = ordered[0]
    waiting = every = 0.0
    for begin, end in ordered:
        gap = max(0.0, begin - busy_until)
        every += gap
        waiting += gap if gap > SHORT else 0.0
        busy_until = max(busy_until, end)
    span = busy_until - first
    return Idle(waiting / span, every / span)


def watched(work: Callable[[], object]) -> Idle | None:
    """Watches `work` on a GPU, from an idle device to an idle device; None where the profiler may not look at it."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    events: Any = found.events()
    ran = [event.time_range for event in events if event.device_type.name == "CUDA"]
    return idle_share((each.start / 1e6, each.end / 1e6) for each in ran) if ran else None  # µs
