"""Computes the gate of an MLP: bound by reading and writing it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from kernels.gate import CANDIDATES, Activation, gate, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"
LLAMA, QWEN, GEMMA = 14336, 3072, 6912
"""Widths of Llama-3.1-8B, Qwen3-0.6B and Gemma-3-1B."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Gate:
    """Describes rows with gate and up, each so wide, side by side."""

    rows: int
    width: int
    activation: Activation = "silu"
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.width}" + (f", {self.activation}" if self.activation != "silu" else "")

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        gate_up = random((self.rows, 2 * self.width), device, dtype)

        def run(config: Config | None) -> Tensor:
            return gate(gate_up, self.activation, config=config)

        def peer() -> Tensor:
            first, second = gate_up.chunk(2, -1)
            if self.activation == "silu":
                return functional.silu(first).mul_(second)
            return functional.gelu(first, approximate="tanh").mul_(second)

        return Case(
            run,
            lambda config: close(run(config), reference(gate_up, self.activation)),
            bytes=3 * self.rows * self.width * dtype.itemsize,
            peers={"operators": peer} if self.activation != "clamped_swiglu" else {},
        )


SHAPES: Mapping[Size, Sequence[Gate]] = {
    "full": [
        *(Gate(rows, width) for width in (LLAMA, QWEN) for rows in (1, 32, 256, 8192)),
        *(Gate(rows, GEMMA, "gelu_tanh") for rows in (32, 8192)),
    ],
    "tiny": [Gate(3, 40), Gate(2, 24, "gelu_tanh"), Gate(2, 24, "clamped_swiglu")],
    "compiled": [*(Gate(2, width) for width in (1536, 4864)), Gate(2, 2880, "clamped_swiglu")],
}
