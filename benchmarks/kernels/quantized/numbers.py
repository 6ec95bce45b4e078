"""Makes the numbers of quantized weights: bound by writing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target, close
from benchmarks.kernels.quantized.product import DOWN, GATE_UP
from benchmarks.kernels.quantized.weights import AWQ, FP8, INT4, MXFP4, Q6_K, Groups, bytes_of, weights
from kernels.quantized.numbers import CANDIDATES, numbers, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Unpacking:
    """Describes a weight of so many outputs and inputs."""

    sizes: tuple[int, int]
    groups: Groups
    target: Target | None = None

    def __str__(self) -> str:
        outputs, inputs = self.sizes
        return f"{outputs} x {inputs}, {self.groups}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        weight = weights(self.groups, *self.sizes, device)

        def run(config: Config | None) -> Tensor:
            return numbers(weight, dtype, config=config)

        return Case(
            run,
            lambda config: close(run(config), reference(weight, dtype)),
            bytes=bytes_of(weight) + self.sizes[0] * self.sizes[1] * dtype.itemsize,
        )


SHAPES: Mapping[Size, Sequence[Unpacking]] = {
    "full": [*(Unpacking(GATE_UP, groups) for groups in (INT4, AWQ, FP8)), Unpacking(DOWN, INT4)],
    "tiny": [Unpacking((40, 96), INT4), Unpacking((40, 100), Q6_K)],
    "compiled": [Unpacking((1000, 2880), groups) for groups in (INT4, MXFP4, Q6_K)],
}
