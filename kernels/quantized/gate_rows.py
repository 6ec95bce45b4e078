"""Gates rows like `kernels/gate.py` and quantizes the result, in one launch with half of the memory traffic.

    rows = quantized(activation(first half) * second half)

The gated value is rounded to the input format before it is quantized, so the bits equal the result of two launches. A
program takes a whole row, since there are many rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gate import Activation, activate, gate
from kernels.launching import launched_directly
from kernels.quantized.rows import CANDIDATE_CONFIGS as OF_ROWS
from kernels.quantized.rows import (
    QuantizedRows,
    RowFormat,
    config_for,
    empty_rows,
    quantize_rows,
    store_row,
    tile_of,
    unsupported,
)
from kernels.tuning import Config

CANDIDATE_CONFIGS = OF_ROWS


def gate_rows(
    gate_up: Tensor, activation: Activation, form: RowFormat, *, config: Config | None = None
) -> QuantizedRows:
    """Multiplies the activation of the first half of each row by its second half, and quantizes the product.

    Takes `gate_up` `[rows, 2 x width]` in fp32, bf16 or fp16, contiguous.

    Example: gate_up `[256, 28672]` gives values `[256, 14336]` and scales `[1, 256]`.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.shape == (rows, 2 * width) and gate_up.is_contiguous() and not unsupported(width)
    found = empty_rows(rows, width, form, gate_up.device)
    options = config_for("quantized_gate_rows", gate_up, form, width, config).options()
    _gate_rows[(rows,)](
        gate_up,
        found.values.view(torch.uint8),
        found.scales,
        rows,
        WIDTH=width,
        TILE=tile_of(width),
        ACTIVATION=activation,
        GROUP=form.group,
        KIND=form.kind,
        **options,
    )
    return found


@launched_directly
@triton.jit(do_not_specialize=["rows"])
def _gate_rows(
    gate_up: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    inside = column < WIDTH
    addresses = gate_up + row * (2 * WIDTH) + column
    first = tl.load(addresses, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(addresses + WIDTH, mask=inside, other=0.0).to(tl.float32)
    found = activate(first, second, ACTIVATION).to(gate_up.dtype.element_ty).to(tl.float32)
    store_row(found, values, scales, row, rows, WIDTH, TILE, GROUP, KIND)


def reference(gate_up: Tensor, activation: Activation, form: RowFormat) -> QuantizedRows:
    return quantize_rows(gate(gate_up, activation), form)
