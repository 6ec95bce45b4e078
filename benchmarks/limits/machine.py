"""Measures what the machine can do at most, now: the limits that stand beside every figure of the engine.

Neighbours and clocks move these figures by a factor of two within an hour, so they are measured in the run they limit.

A step reads all weights once, so its limit is the rate at which that many bytes can be read again and again: where they
fit into the last cache, that is the cache's rate, not memory's. A cache of hundreds of megabytes is shared with others,
and what of it is left for us is not known, so the rate is measured on as many bytes as the weights have, and shown
beside that of 1 GiB. Sums of fp32 keep up with memory; sums of 64-bit integers do not.

The matrix rate is the best of products of several shapes, small ones whose operands stay in the nearest caches among
them, with weights packed by oneDNN as it likes them: what a good library reaches, not what the units could do. Where
fp32 numbers that never leave the registers are multiplied faster than that, theirs is the rate.
"""

import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.limits.fused_rate import fused_rate
from engine.backends.reference.linear import can_pack

GIBIBYTE = 1 << 30
SHAPES = ((256, 512, 512), (512, 576, 1536), (512, 1024, 1024), (1024, 2048, 2048))
"""Rows, inputs, outputs."""
REPEATS = 7


@dataclass(frozen=True)
class Machine:
    """The best of several repeats: a limit is what the machine can do, not what it did on average."""

    name: str
    threads: int
    read: float  # bytes/s, of so many bytes as the weights have
    multiply: float  # floating-point operations/s of a matrix product in the model's format

    @staticmethod
    def best(measured: Iterable["Machine"]) -> "Machine":
        found = list(measured)
        return Machine(
            found[0].name, found[0].threads, max(each.read for each in found), max(each.multiply for each in found)
        )


def measure(device: torch.device, dtype: torch.dtype, weight_bytes: int) -> Machine:
    return Machine(
        _name(device), torch.get_num_threads(), read_rate(device, weight_bytes), multiply_rate(device, dtype)
    )


def read_rate(device: torch.device, size: int) -> float:
    """Returns bytes per second of a sum over `size` bytes; on a CPU by all threads or one, whichever is faster.

    Where neighbours hold a core, one thread alone can be: all threads wait for the last.
    """
    data = torch.ones(size // 4, dtype=torch.float32, device=device)
    threads = torch.get_num_threads()
    seconds = _best(device, data.sum)
    if device.type == "cpu" and threads > 1:
        torch.set_num_threads(1)
        seconds = min(seconds, _best(device, data.sum))
        torch.set_num_threads(threads)
    return data.nbytes / seconds


def multiply_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the floating-point operations per second of the fastest product.

    Where a CPU does not multiply bf16, PyTorch emulates it, at a fraction of what its fp32 units do with the same
    numbers: the rate of fp32 is the limit there.
    """
    rates = [fused_rate(torch.get_num_threads())] if device.type == "cpu" else []
    with torch.inference_mode():
        for rows, inputs, outputs in SHAPES:
            left, right = (torch.randn((height, inputs), device=device).to(dtype) for height in (rows, outputs))
            rates.append(2 * rows * inputs * outputs / _best(device, _product(left, right)))
    return max(rates)


def _product(left: torch.Tensor, right: torch.Tensor) -> Callable[[], object]:
    if left.device.type != "cpu" or left.dtype != torch.bfloat16:
        return lambda: left @ right.T
    operators: Any = torch.ops.mkldnn
    try:
        packed = operators._reorder_linear_weight(right, left.shape[0]) if can_pack() else None
    except RuntimeError:  # oneDNN is kept to fewer instructions than the processor has
        packed = None
    if packed is None:
        left, right = left.float(), right.float()
        return lambda: left @ right.T
    return lambda: operators._linear_pointwise.default(left, packed, None, "none", [], "")


def _best(device: torch.device, work: Callable[[], object]) -> float:
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
    return processor()


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
