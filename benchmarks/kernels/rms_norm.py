"""Norms hidden states, behind the addition to the residual stream: bound by reading and writing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from kernels.rms_norm import CANDIDATES, add_rms_norm, reference, rms_norm
from kernels.tuning import Config

LIMIT: Limit = "copy"
EPS = 1e-6
LLAMA, QWEN = 4096, 1024
"""Widths of the two models."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Norm:
    """Describes rows of hidden states; `add`: a change is added first."""

    rows: int
    width: int
    add: bool = True
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.width}{', added' if self.add else ''}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        hidden, change = (random((self.rows, self.width), device, dtype) for _ in range(2))
        weight = random((self.width,), device, dtype)

        def run(config: Config | None) -> Tensor | None:
            if not self.add:
                return rms_norm(hidden, weight, EPS, config=config)
            add_rms_norm(hidden, change, weight, EPS, config=config)
            return None  # it grows from run to run

        def check(config: Config | None) -> None:
            if not self.add:
                close(rms_norm(hidden, weight, EPS, config=config), reference(hidden, weight, EPS))
                return
            ours, theirs = hidden.clone(), hidden.clone()
            found = add_rms_norm(ours, change, weight, EPS, config=config)
            close(found, reference(theirs, weight, EPS, change))
            close(ours, theirs)

        def peer() -> Tensor | None:
            if not self.add:
                return functional.rms_norm(hidden, (self.width,), weight, EPS)
            functional.rms_norm(hidden.add_(change), (self.width,), weight, EPS)
            return None

        passes = 4 if self.add else 2
        return Case(run, check, bytes=passes * hidden.numel() * dtype.itemsize, peers={"operators": peer})


SHAPES: Mapping[Size, Sequence[Norm]] = {
    "full": [
        *(Norm(rows, width) for width in (LLAMA, QWEN) for rows in (1, 32, 256, 8192)),
        Norm(8192, LLAMA, add=False),
    ],
    "tiny": [Norm(3, 40), Norm(2, 24, add=False)],
    "compiled": [*(Norm(2, width) for width in (576, 896, 8192)), Norm(2, LLAMA, add=False)],
}
