"""Measures the seconds that work takes on a device, and what the device can do at most, in one run.

On a GPU work is captured in a CUDA graph, as a decode step runs it, so that a small kernel's time is the kernel's and
not that of its launch from Python. Each replay begins with a cold L2, and is timed by events on the device: the writing
that flushes the L2 takes long enough for the host to be ahead.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

REPEATS_S = 0.05
"""Seconds that the repeats behind a figure, their median, take together."""
MIN_REPEATS, MAX_REPEATS = 3, 200
FLUSH_BYTES = 256 << 20
"""Several times the L2 of any GPU today."""
GPU_MATRIX_EDGE, CPU_MATRIX_EDGE = 8192, 256
"""Edge of the matrices whose product is the rate: on a GPU, and elsewhere."""
COPIED_BYTES = {"cuda": 4 << 30, "cpu": 64 << 20}
"""Bytes; many times the caches."""

Work = Callable[[], object]


@dataclass(frozen=True)
class Limits:
    """Rates of a device, measured in the run that they limit."""

    copy: float  # bytes/s of a copy within its memory, read and written
    multiply: float  # floating-point operations/s of a large matrix product of random numbers


def seconds_of(work: Work, device: torch.device) -> float:
    return median(_on_gpu(work) if device.type == "cuda" else _on_host(work))


def limits_of(device: torch.device, dtype: torch.dtype) -> Limits:
    return Limits(_copy_rate(device), _multiply_rate(device, dtype))


def _copy_rate(device: torch.device) -> float:
    size = COPIED_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.empty(size, dtype=torch.uint8, device=device).random_(0, 256)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device)


def _multiply_rate(device: torch.device, dtype: torch.dtype) -> float:
    edge = GPU_MATRIX_EDGE if device.type == "cuda" else CPU_MATRIX_EDGE
    left, right = (torch.randn((edge, edge), device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    return 2 * edge**3 / seconds_of(lambda: torch.mm(left, right, out=product), device)


def _on_host(work: Work) -> list[float]:
    times: list[float] = []
    work()
    while len(times) < MIN_REPEATS or (sum(times) < REPEATS_S and len(times) < MAX_REPEATS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return times


def _on_gpu(work: Work) -> list[float]:
    cuda: Any = torch.cuda
    replay = captured(work)
    flushed = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def timed(count: int) -> list[float]:
        events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
        for begin, end in events:
            flushed.zero_()
            begin.record()
            replay()
            end.record()
        cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]

    (first,) = timed(1)
    return timed(min(MAX_REPEATS, max(MIN_REPEATS, int(REPEATS_S / first))))


def captured(work: Work) -> Work:
    cuda: Any = torch.cuda
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        work()
    cuda.current_stream().wait_stream(stream)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        work()
    replay: Work = graph.replay
    return replay
