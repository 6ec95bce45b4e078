"""Computes the gate of an MLP: bound by reading and writing it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from kernels.silu_and_mul import CANDIDATES, reference, silu_and_mul
from kernels.tuning import Config

LIMIT: Limit = "copy"
LLAMA, QWEN = 14336, 3072
"""Widths of the two models."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Gate:
    """Describes rows with gate and up, each so wide, side by side."""

    rows: int
    width: int
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.width}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        gate_up = random((self.rows, 2 * self.width), device, dtype)

        def run(config: Config | None) -> Tensor:
            return silu_and_mul(gate_up, config=config)

        def peer() -> Tensor:
            gate, up = gate_up.chunk(2, -1)
            return functional.silu(gate).mul_(up)

        return Case(
            run,
            lambda config: close(run(config), reference(gate_up)),
            bytes=3 * self.rows * self.width * dtype.itemsize,
            peers={"operators": peer},
        )


SHAPES: Mapping[Size, Sequence[Gate]] = {
    "full": [Gate(rows, width) for width in (LLAMA, QWEN) for rows in (1, 32, 256, 8192)],
    "tiny": [Gate(3, 40)],
    "compiled": [Gate(2, width) for width in (1536, 4864)],
}
