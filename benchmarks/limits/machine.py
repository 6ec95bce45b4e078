"""Measures the limits of the machine now, which stand beside every figure of the engine.

Neighbours and clocks move them by a factor of two within an hour, so they are measured in the run that they limit.

A step reads all weights once, so its limit is the rate of reading as many bytes again and again. Weights that fit into
the last cache have the cache's rate, which is shared with neighbours; so the rate is measured over as many bytes as the
weights have, and shown beside that of 1 GiB. Sums of fp32 keep up with memory; sums of 64-bit integers do not.

The matrix rate is the best of products of several shapes, some of which stay in the nearest caches, with weights packed
by oneDNN: the rate of a good library, not of the units. Where multiplying fp32 numbers in registers is faster, that is
the rate.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.limits.fused_rate import fused_rate
from engine.backends.reference.linear import can_pack
from launcher.bench.machine import processor

GIBIBYTE_BYTES = 1 << 30
PRODUCT_SHAPES = ((256, 512, 512), (512, 576, 1536), (512, 1024, 1024), (1024, 2048, 2048))
"""Rows, inputs, outputs."""
REPEATS_PER_FIGURE = 7


@dataclass(frozen=True)
class Machine:
    """Limits of a machine: the best of several repeats."""

    name: str
    threads: int
    read: float  # bytes/s, over as many bytes as the weights have
    multiply: float  # floating-point operations/s of a matrix product in the model's format

    @staticmethod
    def best(measured: Iterable["Machine"]) -> "Machine":
        found = list(measured)
        return Machine(
            found[0].name, found[0].threads, max(each.read for each in found), max(each.multiply for each in found)
        )


def measure(device: torch.device, dtype: torch.dtype, weight_bytes: int) -> Machine:
    name = str(torch.cuda.get_device_name(device)) if device.type == "cuda" else processor()
    return Machine(name, torch.get_num_threads(), read_rate(device, weight_bytes), multiply_rate(device, dtype))


def read_rate(device: torch.device, size: int) -> float:
    """Returns bytes per second of a sum over `size` bytes; on a CPU by one thread if that is faster.

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

    PyTorch emulates bf16 where a CPU does not multiply it; the rate of fp32 is the limit there.
    """
    rates = [fused_rate(torch.get_num_threads())] if device.type == "cpu" else []
    with torch.inference_mode():
        for rows, inputs, outputs in PRODUCT_SHAPES:
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
    for _ in range(REPEATS_PER_FIGURE + 1):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])
