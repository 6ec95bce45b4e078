"""Multiplies quantized rows by weights of 8 bits: bound by multiplying, twice as fast as numbers of 16 bits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from benchmarks.kernels.quantized.product import DOWN, GATE_UP, OUTPUT, QKV
from benchmarks.kernels.quantized.weights import BLOCKS, FP8, INT8, Groups, bytes_of, weights
from kernels.quantized.numbers import numbers
from kernels.quantized.packed import Packed
from kernels.quantized.product import product
from kernels.quantized.row_product import CANDIDATES, reference, row_form, row_product
from kernels.quantized.rows import Rows, dequantized, quantize_rows, room
from kernels.tuning import Config

LIMIT: Limit = "multiply"
CHECKED = 64
"""Rows that are compared: the reference multiplies in fp64."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class RowProduct:
    """Describes rows that a weight of so many outputs and inputs multiplies."""

    rows: int
    sizes: tuple[int, int]
    groups: Groups
    bias: bool = False
    target: Target | None = None

    def __str__(self) -> str:
        outputs, inputs = self.sizes
        return f"{self.rows} x {inputs} -> {outputs}, {self.groups}{', bias' if self.bias else ''}"

    def runs_on(self, device: torch.device) -> bool:
        """Tells whether rows are quantized for such weights on a device."""
        return row_form(weights(self.groups, *self.sizes, torch.device("meta")), device) is not None

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. The peers multiply what rows stand for."""
        outputs, inputs = self.sizes
        weight, x = weights(self.groups, outputs, inputs, device), random((self.rows, inputs), device, dtype)
        bias = random((outputs,), device, dtype) if self.bias else None
        form = row_form(weight, device)
        assert form is not None, "not launched on such a device"
        rows = room(self.rows, inputs, form, device) if device.type == "meta" else quantize_rows(x, form)
        y = x.new_empty((self.rows, outputs))

        def run(config: Config | None) -> Tensor:
            return row_product(rows, weight, bias, y, config=config)

        def check(config: Config | None) -> None:
            few = Rows(rows.values[:CHECKED], rows.scales[:, :CHECKED], rows.form, inputs)
            close(run(config)[:CHECKED], reference(few, weight, bias, dtype))

        return Case(
            run,
            check,
            bytes=bytes_of(weight) + self.rows * (inputs + outputs * dtype.itemsize),
            operations=2 * self.rows * outputs * inputs,
            peers={} if device.type == "meta" else _peers(dequantized(rows).to(dtype), weight, bias),
        )


def _peers(x: Tensor, weight: Packed, bias: Tensor | None) -> dict[str, Callable[[], object]]:
    whole = numbers(weight, x.dtype)
    return {
        "cuBLAS, numbers": lambda: functional.linear(x, whole, bias),
        "rows of 16 bits": lambda: product(x, weight, bias),
    }


SHAPES: Mapping[Size, Sequence[RowProduct]] = {
    "full": [
        *(RowProduct(rows, GATE_UP, groups) for groups in (INT8, FP8, BLOCKS) for rows in (256, 2048, 8192)),
        *(RowProduct(2048, sizes, groups) for sizes in (QKV, OUTPUT, DOWN) for groups in (INT8, FP8)),
    ],
    "tiny": [
        RowProduct(140, (40, 96), INT8, bias=True),
        RowProduct(130, (40, 70), FP8),
        RowProduct(131, (40, 256), BLOCKS),
    ],
    "compiled": [
        *(RowProduct(256, (1000, 2880), groups, bias=True) for groups in (INT8, FP8, BLOCKS)),
        *(RowProduct(200, (1000, 1000), groups) for groups in (INT8, FP8)),
        RowProduct(200, (1000, 4096), Groups("int8", 128)),
    ],
}
