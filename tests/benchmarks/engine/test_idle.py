"""InterTokenLatency between what ran on a device."""

import pytest
import torch

from benchmarks.engine.idle import Idle, KernelTime, Ran, by_kernel, idle_share, watched


def ran(*intervals: tuple[float, float]) -> list[Ran]:
    return [Ran("kernel", begin, end) for begin, end in intervals]


def test_gaps_are_what_no_stream_fills() -> None:
    """Ten microseconds in which nothing runs, of fifty; what overlaps counts once, in any order."""
    found = ran((30e-6, 50e-6), (0.0, 10e-6), (5e-6, 20e-6), (6e-6, 7e-6))
    assert idle_share(found) == pytest.approx(Idle(0.2, 0.2))


def test_short_gaps_are_the_devices_own() -> None:
    assert idle_share(ran((0.0, 10e-6), (12e-6, 20e-6))) == pytest.approx(Idle(0.0, 0.1))


def test_time_is_summed_up_by_kernel() -> None:
    found = [Ran("norm", 0.0, 1.0), Ran("product", 1.0, 5.0), Ran("norm", 5.0, 7.5)]
    assert by_kernel(found) == [KernelTime("product", 1, 4.0), KernelTime("norm", 2, 3.5)]


@pytest.mark.gpu
def test_the_profiler_sees_what_runs_on_a_gpu() -> None:
    """Products without a synchronization between them, and with one: only then the device waits."""
    x = torch.randn(4096, 4096, device="cuda")

    def together() -> None:
        for _ in range(20):
            x @ x

    def apart() -> None:
        for _ in range(20):
            (x[:64] @ x[:, :64]).sum().item()

    first, second = idle_share(watched(together)), idle_share(watched(apart))
    assert 0 <= first.waiting <= first.all < second.all < 1 and second.waiting > first.waiting
