"""Norms rows like `kernels/rms_norm.py` and quantizes the result, in one launch with half of the memory traffic.

    hidden = hidden + change
    rows = quantized(hidden / sqrt(mean(hidden^2) + eps) * weight)

The norm is rounded to the format of `hidden` before it is quantized: the bits equal the result of two launches.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.quantized.rows import CANDIDATE_CONFIGS as OF_ROWS
from kernels.quantized.rows import QuantizedRows, RowFormat, config_for, empty_rows, quantize_rows, store_row, tile_of
from kernels.rms_norm import MAX_WIDTH, norm_row, rms_norm
from kernels.tuning import Config

CANDIDATE_CONFIGS = OF_ROWS


def norm_rows(
    hidden: Tensor, change: Tensor | None, weight: Tensor, eps: float, form: RowFormat, *, config: Config | None = None
) -> QuantizedRows:
    """Norms each row of `hidden`, behind the addition of a `change` in place, if any, and quantizes it.

    `hidden` and `change` are `[rows, width]` in fp32, bf16 or fp16, contiguous; the weight is `[width]`.

    Example: hidden and change `[256, 4096]`, weight `[4096]`, int8: values `[256, 4096]`, scales `[1, 256]`.
    """
    rows, width = hidden.shape
    assert hidden.is_contiguous() and width <= MAX_WIDTH and weight.shape == (width,) and weight.is_contiguous()
    assert change is None or (change.shape == hidden.shape and change.dtype == hidden.dtype and change.is_contiguous())
    found = empty_rows(rows, width, form, hidden.device)
    options = config_for("quantized_norm_rows", hidden, form, width, config).options()
    _norm_rows[(rows,)](
        hidden,
        hidden if change is None else change,
        weight,
        found.values.view(torch.uint8),
        found.scales,
        rows,
        eps,
        WIDTH=width,
        TILE=tile_of(width),
        ADD=change is not None,
        GROUP=form.group,
        KIND=form.kind,
        **options,
    )
    return found


@launched_directly
@triton.jit(do_not_specialize=["rows"])
def _norm_rows(
    hidden: tl.tensor,
    change: tl.tensor,
    weight: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    ADD: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    found = norm_row(hidden, change, weight, row, eps, WIDTH, TILE, ADD).to(tl.float32)
    store_row(found, values, scales, row, rows, WIDTH, TILE, GROUP, KIND)


def reference(hidden: Tensor, change: Tensor | None, weight: Tensor, eps: float, form: RowFormat) -> QuantizedRows:
    if change is not None:
        hidden += change
    return quantize_rows(rms_norm(hidden, weight, eps), form)
