"""Multiplies many rows by quantized weights: bound by multiplying."""

from collections.abc import Mapping, Sequence

from benchmarks.kernels.case import Limit, Size
from benchmarks.kernels.quantized.product import DOWN, GATE_UP, Product
from benchmarks.kernels.quantized.weights import AWQ, FP8, INT4, INT8
from kernels.quantized.product import CANDIDATES

LIMIT: Limit = "multiply"

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]

SHAPES: Mapping[Size, Sequence[Product]] = {
    "full": [
        *(Product(rows, GATE_UP, groups) for groups in (INT4, AWQ, INT8, FP8) for rows in (256, 1023)),
        Product(512, DOWN, INT4),
    ],
    "tiny": [Product(140, (40, 96), INT4)],
    "compiled": [Product(200, (1000, 2880), AWQ, bias=True)],
}
