"""Quantizes rows that nothing of ours gives, such as what attention does: bound by reading and writing them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.kernels.case import Case, Limit, Size, Target, random
from kernels.quantized.rows import CANDIDATES, RowForm, Rows, dequantized, quantize_rows, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"
ALL = 1 << 30
INT8, FP8, BLOCKS = RowForm("int8", ALL), RowForm("fp8", ALL), RowForm("fp8", 128)
LLAMA, WIDE = 4096, 14336
"""Widths of Llama-3.1-8B's hidden states, and within its MLP."""

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


def alike(found: Rows, expected: Rows) -> None:
    """Raises AssertionError where more than one value in 1,000 differs, or one by more than rounding: ties apart."""
    torch.testing.assert_close(found.scales, expected.scales, rtol=1e-5, atol=0)
    ours, theirs = dequantized(found), dequantized(expected)
    step = expected.scales.t().repeat_interleave(min(found.form.group, ours.shape[1]), 1)[:, : ours.shape[1]]
    error = (ours - theirs).abs()
    assert (error <= torch.maximum(step, theirs.abs() / 8) * 1.01).all(), "a value is another"
    assert (error > step * 1e-3).double().mean() < 1e-3, "values round otherwise"


def bytes_of(rows: int, width: int, form: RowForm) -> int:
    """Returns how many bytes quantized rows have."""
    return rows * (-(-width // 32) * 32 + 4 * form.groups(width))


@dataclass(frozen=True)
class Quantizing:
    """Describes rows to be quantized."""

    rows: int
    width: int
    form: RowForm
    target: Target | None = None

    def __str__(self) -> str:
        return f"{self.rows} x {self.width}, {self.form.name}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        x = random((self.rows, self.width), device, dtype)

        def run(config: Config | None) -> Rows:
            return quantize_rows(x, self.form, config=config)

        return Case(
            run,
            lambda config: alike(run(config), reference(x, self.form)),
            bytes=x.numel() * dtype.itemsize + bytes_of(self.rows, self.width, self.form),
        )


SHAPES: Mapping[Size, Sequence[Quantizing]] = {
    "full": [Quantizing(rows, LLAMA, form) for form in (INT8, FP8, BLOCKS) for rows in (256, 8192)],
    "tiny": [Quantizing(3, 40, INT8), Quantizing(3, 200, BLOCKS)],
    "compiled": [Quantizing(200, width, form) for form in (INT8, FP8, BLOCKS) for width in (576, 2880, 1 << 15)],
}
