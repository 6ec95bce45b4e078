"""Norms hidden states and quantizes them in one launch: bound by reading and writing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.kernels.case import Case, Limit, Size, Target, random
from benchmarks.kernels.quantized.rows import BLOCKS, FP8, INT8, LLAMA, alike, bytes_of
from kernels.quantized.norm_rows import CANDIDATES, norm_rows, reference
from kernels.quantized.rows import RowForm, Rows
from kernels.tuning import Config

LIMIT: Limit = "copy"
EPS = 1e-6

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class NormRows:
    """Describes rows of hidden states that a change is added to first."""

    rows: int
    width: int
    form: RowForm
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.width}, {self.form.name}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says. The peer is two launches."""
        hidden, change = (random((self.rows, self.width), device, dtype) for _ in range(2))
        weight = random((self.width,), device, torch.float32)

        def run(config: Config | None) -> Rows:
            return norm_rows(hidden, change, weight, EPS, self.form, config=config)

        def check(config: Config | None) -> None:
            ours, theirs = hidden.clone(), hidden.clone()
            found = norm_rows(ours, change, weight, EPS, self.form, config=config)
            alike(found, reference(theirs, change, weight, EPS, self.form))
            assert ours.equal(theirs), "another sum"

        moved = 3 * hidden.numel() * dtype.itemsize + bytes_of(self.rows, self.width, self.form)
        return Case(
            run,
            check,
            bytes=moved,
            peers={"two launches": lambda: reference(hidden, change, weight, EPS, self.form)},
        )


SHAPES: Mapping[Size, Sequence[NormRows]] = {
    "full": [NormRows(rows, LLAMA, form) for form in (INT8, BLOCKS) for rows in (256, 8192)],
    "tiny": [NormRows(3, 40, INT8), NormRows(2, 200, BLOCKS)],
    "compiled": [NormRows(200, width, form) for form in (INT8, FP8, BLOCKS) for width in (576, 7168, 1 << 14)],
}
