"""What the machine can do at most, measured now: the limits that stand beside every figure of the engine.

Neighbours and clocks move these figures by a factor of two within an hour, so they are measured in the run they limit.
"""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

READ_BYTES = 256 << 20
MATRIX_ROWS = 1024
REPEATS = 7


@dataclass(frozen=True)
class Machine:
    """Best of several repeats: a limit is what the machine can do, not what it did on average."""

    name: str
    threads: int
    read: float  # bytes/s from memory
    multiply: float  # floating-point operations/s of a matrix product in the model's format


def measure(device: torch.device, dtype: torch.dtype) -> Machine:
    """Reads 256 MiB, and multiplies matrices of 1024 x 2048 and 2048 x 2048."""
    data = torch.ones(READ_BYTES // 8, dtype=torch.int64, device=device)
    left = torch.randn((MATRIX_ROWS, 2048), device=device).to(dtype)
    right = torch.randn((2048, 2048), device=device).to(dtype)
    with torch.inference_mode():
        read = READ_BYTES / _best(device, lambda: data.sum())
        multiply = 2 * MATRIX_ROWS * 2048 * 2048 / _best(device, lambda: left @ right)
    return Machine(_name(device), torch.get_num_threads(), read, multiply)


def _best(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of the fastest repeat, after one that warms up."""
    times = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
