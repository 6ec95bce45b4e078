"""Quantizes rows to int8 or fp8 (e4m3) for products with 8-bit weights.

    scales[g, r] = max |x[r, i]| / largest    over the inputs i of group g; largest = 127 of int8, 448 of fp8
    values[r, i] = x[r, i] / scales[g, r], rounded to the nearest

Nothing is clipped. A group is all inputs, or 128 of them where weights have scales for 128 inputs (DeepSeek-AI, 2024,
https://arxiv.org/abs/2412.19437, section 3.3). Magnitudes below 2^-100 count as 2^-100 for the scale. A group with a
value that is not finite has a scale that is not finite.

Rows are padded with zeros to a multiple of 32 values, as packed weights are.

A program takes one row and keeps it in registers. `store_row` is what `norm_rows.py` and `gate_rows.py` end with.
"""

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.launching import launched_directly
from kernels.quantized.kv_bytes import ROUND_TO_INTEGER, e4m3
from kernels.quantized.packed import RUN_BYTES
from kernels.quantized.steps import RUN_BYTES as SPAN
from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config, tuned

RowKind = Literal["int8", "fp8"]
ROW_DTYPES: dict[RowKind, torch.dtype] = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LARGEST_VALUES: dict[RowKind, float] = {"int8": 127.0, "fp8": 448.0}
MAX_WIDTH = 1 << 15
"""Maximum row width that the registers of 16 warps hold."""
MIN_MAGNITUDE = 2.0**-100
CANDIDATE_CONFIGS = (Config({}, warps=8), Config({}, warps=4), Config({}, warps=16))
"""The first is the default of rows of up to `MAX_NARROW_WIDTH` values, the last that of longer rows."""
MAX_NARROW_WIDTH = 8192
MIN_MAGNITUDE_BITS, INFINITY_BITS, MAGNITUDE_BITS = (
    tl.constexpr(0x0D800000),
    tl.constexpr(0x7F800000),
    tl.constexpr(0x7FFFFFFF),
)
"""The bits of 2^-100 and of infinity in fp32, and all bits but the sign."""


class RowFormat(NamedTuple):
    """How rows are quantized."""

    kind: RowKind
    group: int  # inputs that share a row's scale: a power of two, or more than there are

    def groups(self, inputs: int) -> int:
        return tile_count(inputs, self.group)

    @property
    def name(self) -> str:
        return f"{self.kind},group={self.group if self.group <= MAX_WIDTH else 'all'}"


class QuantizedRows(NamedTuple):
    """Quantized rows."""

    values: Tensor  # [rows, in up to a multiple of 32], int8 or float8_e4m3fn
    scales: Tensor  # fp32 [groups, rows]
    form: RowFormat
    inputs: int


def unsupported(width: int) -> str:
    """Returns one sentence that says why rows of this width cannot be quantized; empty if supported."""
    return f"rows of up to {MAX_WIDTH} values are quantized, not of {width}" if width > MAX_WIDTH else ""


def empty_rows(rows: int, width: int, form: RowFormat, device: torch.device) -> QuantizedRows:
    values = torch.empty((rows, tile_count(width, RUN_BYTES) * RUN_BYTES), dtype=ROW_DTYPES[form.kind], device=device)
    return QuantizedRows(values, torch.empty((form.groups(width), rows), device=device), form, width)


def tile_of(width: int) -> int:
    return max(RUN_BYTES, power_of_two(width))


def config_for(kernel: str, x: Tensor, form: RowFormat, width: int, config: Config | None) -> Config:
    shape = f"{str(x.dtype).removeprefix('torch.')},{form.name},width={width}"
    return config or tuned(kernel, shape, x.device, CANDIDATE_CONFIGS[0 if width <= MAX_NARROW_WIDTH else -1])


def quantize_rows(x: Tensor, form: RowFormat, *, config: Config | None = None) -> QuantizedRows:
    """Quantizes rows `[rows, in]`, contiguous, of fp32, bf16 or fp16.

    Example: x `[256, 1000]` in groups of 128 gives values `[256, 1024]` and scales `[8, 256]`.
    """
    rows, width = x.shape
    found = empty_rows(rows, width, form, x.device)
    assert x.is_contiguous() and not unsupported(width)
    options = config_for("quantized_rows", x, form, width, config).options()
    _quantize[(rows,)](
        x,
        found.values.view(torch.uint8),
        found.scales,
        rows,
        WIDTH=width,
        TILE=tile_of(width),
        GROUP=form.group,
        KIND=form.kind,
        enable_fp_fusion=False,
        **options,
    )
    return found


@launched_directly
@triton.jit(do_not_specialize=["rows"])
def _quantize(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    found = tl.load(x + row * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    store_row(found, values, scales, row, rows, WIDTH, TILE, GROUP, KIND)


@triton.jit
def store_row(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    """Quantizes and stores a row `[TILE]` of fp32 that is 0 after its `WIDTH` values; `row` is its number, int64.

    `values` are bytes. After adding `ROUND_TO_INTEGER`, the lowest byte of a float is the integer's.
    """
    IN_GROUP: tl.constexpr = TILE if GROUP > TILE else GROUP
    GROUPS: tl.constexpr = TILE // IN_GROUP
    ALL: tl.constexpr = (WIDTH + SPAN - 1) // SPAN * SPAN
    MOST: tl.constexpr = 127.0 if KIND == "int8" else 448.0
    parts = tl.reshape(x, [GROUPS, IN_GROUP])
    # Bits of magnitudes are in the order of the values; NaN comes last.
    bits = tl.max(parts.to(tl.int32, bitcast=True) & MAGNITUDE_BITS, 1)
    largest = tl.maximum(bits, MIN_MAGNITUDE_BITS).to(tl.float32, bitcast=True)
    # IEEE's division, as in the reference: multiplying by an inverse would round twice, and a compiler may fuse it
    # with the next addition, which would change how a value halfway between two integers is rounded.
    scale = tl.div_rn(largest, MOST)
    parts = tl.div_rn(
        tl.where((bits < INFINITY_BITS)[:, None], parts, 0.0), tl.broadcast_to(scale[:, None], parts.shape)
    )
    found = (parts + ROUND_TO_INTEGER).to(tl.int32, bitcast=True).to(tl.uint8) if KIND == "int8" else e4m3(parts)
    group, inside = tl.arange(0, GROUPS), tl.arange(0, IN_GROUP)
    column = group[:, None] * IN_GROUP + inside[None, :]
    tl.store(values + row * ALL + column, found, mask=column < ALL)
    tl.store(scales + group * rows.to(tl.int64) + row, scale, mask=group * IN_GROUP < WIDTH)


def reference(x: Tensor, form: RowFormat) -> QuantizedRows:
    """Computes the same with torch operators, in fp32 or wider; for finite rows."""
    rows, width = x.shape
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    groups = form.groups(width)
    size = min(form.group, width)
    parts = functional.pad(wide, (0, groups * size - width)).view(rows, groups, size)
    scales = parts.abs().amax(2).clamp(min=MIN_MAGNITUDE) / LARGEST_VALUES[form.kind]
    scaled = (parts / scales[:, :, None]).flatten(1)[:, :width]
    values = scaled.round() if form.kind == "int8" else scaled
    padded = functional.pad(values, (0, -width % RUN_BYTES))
    return QuantizedRows(padded.to(ROW_DTYPES[form.kind]), scales.t().contiguous(), form, width)


def dequantized(rows: QuantizedRows) -> Tensor:
    """Returns the fp64 numbers `[rows, in]` that quantized rows stand for."""
    size, width = min(rows.form.group, rows.inputs), rows.inputs
    scales = rows.scales.t().double().repeat_interleave(size, 1)
    return rows.values[:, :width].double() * scales[:, :width]
