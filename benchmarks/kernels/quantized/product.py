"""Multiplies few rows by quantized weights: bound by reading the codes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.quantized.weights import (
    AWQ,
    BLOCKS,
    FP8,
    INT4,
    INT8,
    MXFP4,
    Q4_K,
    Q6_K,
    Groups,
    bytes_of,
    weights,
)
from kernels.quantized.numbers import numbers
from kernels.quantized.product import CANDIDATES, product, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"
QKV, OUTPUT, GATE_UP, DOWN = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)
"""Outputs and inputs in Llama-3.1-8B."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Product:
    """Describes rows that a weight of so many outputs and inputs multiplies."""

    rows: int
    sizes: tuple[int, int]
    groups: Groups
    bias: bool = False
    parts: int | None = None
    target: Target | None = None

    def __str__(self) -> str:
        outputs, inputs = self.sizes
        parts = f", {self.parts} parts" if self.parts else ""
        return f"{self.rows} x {inputs} -> {outputs}, {self.groups}{', bias' if self.bias else ''}{parts}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. The peer multiplies by the numbers that they are."""
        outputs, inputs = self.sizes
        weight, x = weights(self.groups, outputs, inputs, device), random((self.rows, inputs), device, dtype)
        bias = random((outputs,), device, dtype) if self.bias else None
        whole = numbers(weight, dtype) if device.type != "meta" else None

        def run(config: Config | None) -> Tensor:
            return product(x, weight, bias, config=config, parts=self.parts)

        return Case(
            run,
            lambda config: close(run(config), reference(x, weight, bias)),
            bytes=bytes_of(weight) + self.rows * (inputs + outputs) * dtype.itemsize,
            operations=2 * self.rows * outputs * inputs,
            peers={} if whole is None else {"cuBLAS, numbers": lambda: functional.linear(x, whole, bias)},
        )


SHAPES: Mapping[Size, Sequence[Product]] = {
    "full": [
        *(Product(rows, GATE_UP, INT4) for rows in (1, 8, 32, 64)),
        *(Product(rows, sizes, INT4) for sizes in (QKV, OUTPUT, DOWN) for rows in (1, 32)),
        *(Product(rows, GATE_UP, groups) for groups in (AWQ, MXFP4, INT8, FP8, BLOCKS, Q4_K, Q6_K) for rows in (1, 32)),
    ],
    "tiny": [
        Product(3, (40, 96), INT4, bias=True),
        Product(2, (40, 200), AWQ, parts=2),
        Product(1, (40, 70), FP8),
        Product(1, (40, 70), Q6_K),
    ],
    "compiled": [
        *(Product(rows, OUTPUT, groups, parts=8) for groups in (INT4, AWQ, FP8) for rows in (1, 32, 64, 128)),
        *(Product(rows, (1000, 2880), groups, bias=True) for groups in (INT4, Q6_K, MXFP4) for rows in (1, 128)),
        *(Product(128, GATE_UP, groups) for groups in (MXFP4, INT8, BLOCKS, Q4_K, Q6_K)),
    ],
}
