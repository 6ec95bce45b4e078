"""Limits of a device are rates of what was really done."""

import time

import pytest
import torch

from benchmarks.limits import device_time
from benchmarks.limits.device_time import (
    COPIED_BYTES,
    CPU_MATRIX_EDGE,
    MIN_REPEATS,
    Limits,
    Work,
    limits_of,
    seconds_of,
)

CPU = torch.device("cpu")


def test_time_is_that_of_the_work() -> None:
    runs = []

    def work() -> None:
        begin = time.perf_counter()
        while time.perf_counter() < begin + 0.02:
            pass
        runs.append(1)

    assert seconds_of(work, CPU) >= 0.02
    assert len(runs) >= 1 + MIN_REPEATS  # one warms up


def test_limits_count_bytes_both_ways_and_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second: a copy reads and writes each byte; a product multiplies and adds for each of n^3."""
    ran: list[object] = []

    def seconds(work: Work, device: torch.device) -> float:
        ran.append(work())
        return 1.0

    monkeypatch.setattr(device_time, "seconds_of", seconds)
    assert limits_of(CPU, torch.float32) == Limits(2 * COPIED_BYTES["cpu"], 2 * CPU_MATRIX_EDGE**3)
    assert all(isinstance(each, torch.Tensor) and each.count_nonzero() > 0 for each in ran)


@pytest.mark.gpu
def test_on_a_gpu_work_is_captured_and_replayed() -> None:
    """Twice before it is timed: once as it is, once into the graph. More of the same takes longer."""
    device = torch.device("cuda")
    source = torch.randn(1 << 26, device=device)
    target = torch.empty_like(source)
    runs = []

    def work() -> None:
        runs.append(1)
        target.copy_(source)

    whole = seconds_of(work, device)
    assert len(runs) == 2 and torch.equal(target, source)
    assert whole > seconds_of(lambda: target[: 1 << 20].copy_(source[: 1 << 20]), device) > 0
