"""Computes the gate of an MLP and quantizes it in one launch: bound by reading and writing it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.kernels.case import Case, Limit, Size, Target, random
from benchmarks.kernels.quantized.rows import BLOCKS, FP8, INT8, WIDE, alike, bytes_of
from kernels.gate import Activation
from kernels.quantized.gate_rows import CANDIDATES, gate_rows, reference
from kernels.quantized.rows import RowForm, Rows
from kernels.tuning import Config

LIMIT: Limit = "copy"

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class GateRows:
    """Describes rows with gate and up, each so wide, side by side."""

    rows: int
    width: int
    form: RowForm
    activation: Activation = "silu"
    target: Target | None = None

    def __str__(self) -> str:
        activation = f", {self.activation}" if self.activation != "silu" else ""
        return f"{self.rows} x {self.width}, {self.form.name}{activation}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. The peer is two launches."""
        gate_up = random((self.rows, 2 * self.width), device, dtype)

        def run(config: Config | None) -> Rows:
            return gate_rows(gate_up, self.activation, self.form, config=config)

        def two() -> Rows:
            return reference(gate_up, self.activation, self.form)

        return Case(
            run,
            lambda config: alike(run(config), two()),
            bytes=gate_up.numel() * dtype.itemsize + bytes_of(self.rows, self.width, self.form),
            peers={"two launches": two},
        )


SHAPES: Mapping[Size, Sequence[GateRows]] = {
    "full": [GateRows(rows, WIDE, form) for form in (INT8, BLOCKS) for rows in (256, 8192)],
    "tiny": [GateRows(3, 40, INT8), GateRows(2, 200, BLOCKS, "gelu_tanh")],
    "compiled": [
        *(GateRows(200, width, form) for form in (INT8, FP8, BLOCKS) for width in (1536, 8192, 1 << 15)),
        GateRows(200, 6912, INT8, "gelu_tanh"),
        GateRows(200, 2880, INT8, "clamped_swiglu"),
    ],
}
