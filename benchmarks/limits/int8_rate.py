"""Measures how fast a CPU multiplies int8: the limit of products whose weights, and inputs, have 8 bits or fewer."""

import time
from typing import Any

import torch

from benchmarks.limits.machine import PRODUCT_SHAPES, REPEATS_PER_FIGURE


def int8_rate() -> float:
    """Returns the operations per second of oneDNN's fastest product of bytes, or 0 where PyTorch has none.

    Inputs have no sign, as the instructions of x86 take them; with a sign oneDNN multiplies them by hand.
    """
    operators: Any = torch.ops.onednn
    if not hasattr(operators, "qlinear_prepack") or not torch.backends.mkldnn.is_available():
        return 0.0
    rates = []
    for rows, inputs, outputs in PRODUCT_SHAPES:
        x = torch.randint(0, 200, (rows, inputs), dtype=torch.uint8)
        weight = operators.qlinear_prepack(
            torch.randint(-100, 100, (outputs, inputs), dtype=torch.int8), [rows, inputs]
        )
        scales, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)
        times = []
        for _ in range(REPEATS_PER_FIGURE + 1):
            begin = time.perf_counter()
            operators.qlinear_pointwise.default(
                x, 1.0, 0, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
            )
            times.append(time.perf_counter() - begin)
        rates.append(2 * rows * inputs * outputs / min(times[1:]))
    return max(rates)
