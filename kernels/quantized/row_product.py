"""Multiplies quantized rows by packed weights of 8 bits: y = x W^T + b, for many rows.

    y[r, o] = sum_g row_scales[g, r] scales[g, o] sum_i x[r, i] v[o, i] + b[o]    over the inputs i of group g

Tensor cores multiply bytes twice as fast as 16-bit values; int8 sums of a group are exact. A group is all inputs, or
rows and weights share groups of as many; outputs of a tile may share the scale of a group, too. fp8 needs a device that
multiplies it (sm_89). Hopper keeps but some 14 digits of a sum of fp8 products (DeepSeek-AI, 2024,
https://arxiv.org/abs/2412.19437, section 3.3.2): so such a sum goes to a total in fp32 after each step of up to 128
inputs. On Blackwell in data centers rows that meet int8 stay as they are: Triton 3.7 multiplies int8 there by Ampere's
instructions, at half of the rate at which the device multiplies bf16 by its own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import converts_fp8, is_hopper, multiplies_by_groups
from kernels.launching import launched_directly
from kernels.quantized.packed import BLOCK_OUTPUTS, PackedWeight
from kernels.quantized.packed import reference as unpacked
from kernels.quantized.product import NEIGHBOUR_ROW_TILES
from kernels.quantized.product import unsupported as unsupported_format
from kernels.quantized.rows import ROW_DTYPES, QuantizedRows, RowFormat, dequantized
from kernels.quantized.rows import unsupported as unsupported_width
from kernels.quantized.steps import RUN_BYTES
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"ROWS": 128, "TILE": 128, "RUNS": 4}, warps=8, stages=4),
    Config({"ROWS": 128, "TILE": 128, "RUNS": 2}, warps=8, stages=4),
    Config({"ROWS": 128, "TILE": 256, "RUNS": 4}, warps=8, stages=3),
    Config({"ROWS": 128, "TILE": 128, "RUNS": 4}, warps=8, stages=3),
    Config({"ROWS": 64, "TILE": 128, "RUNS": 4}, warps=4, stages=3),
)
"""The first is the default of devices whose products take operands from shared memory, the second that of others. The
last is that of groups on Blackwell in data centers: their sums leave a memory of their own after each step."""
MIN_GROUP_INPUTS = 32
"""Minimum number of inputs of a group: the depth of a byte product."""


def row_format(weight: PackedWeight, device: torch.device) -> RowFormat | None:
    """Returns the activation format for rows that meet this weight; None if rows must stay unquantized."""
    kind, group = weight.kind, weight.even_group
    if kind != "int8" and kind != "fp8":
        return None
    if not (converts_fp8(device) if kind == "fp8" else is_hopper(device) or not multiplies_by_groups(device)):
        return None
    if (
        weight.offsets is not None
        or group < MIN_GROUP_INPUTS
        or group & (group - 1)
        or unsupported_width(weight.inputs)
    ):
        return None
    return RowFormat(kind, group)


def row_product(
    rows: QuantizedRows,
    weight: PackedWeight,
    bias: Tensor | None,
    output: Tensor,
    *,
    config: Config | None = None,
) -> Tensor:
    """Multiplies quantized rows by a packed weight.

    Args:
        rows: `[rows, in]`, quantized as `row_format` says.
        weight: packed, `[out, in]`.
        bias: `[out]`, contiguous, in fp32, bf16 or fp16.
        output: `[rows, out]` in one of these, to write to, whose rows are contiguous.
        config: launch config; by default the tuned config.

    Returns the output.

    Example: values `[512, 4096]` int8, weight int8 `[6144, 4096]`: output `[512, 6144]`.
    """
    count, outputs = len(rows.values), weight.outputs
    assert rows.inputs == weight.inputs and rows.values.is_contiguous() and rows.scales.is_contiguous()
    assert rows.form == row_format(weight, rows.values.device) and weight.codes.dim() == 3
    assert output.shape == (count, outputs) and output.stride(1) == 1 and not unsupported_format(output.dtype)
    assert bias is None or (bias.shape == (outputs,) and bias.is_contiguous())
    if not count:
        return output
    options = (config or _config(weight, output)).options()
    runs = len(weight.codes)
    in_runs, grouped = weight.runs_of_step(options.pop("RUNS")), len(weight.scales) > 1
    _multiply[(tile_count(outputs, options["TILE"]) * tile_count(count, options["ROWS"]),)](
        rows.values,
        rows.scales,
        weight.codes.view(ROW_DTYPES[rows.form.kind]),
        weight.scales,
        rows.scales if bias is None else bias,
        output,
        count,
        outputs,
        runs,
        output.stride(0),
        KIND=rows.form.kind,
        GROUP=rows.form.group,
        GROUPED=grouped,
        SHARED=grouped and weight.by_block and BLOCK_OUTPUTS % options["TILE"] == 0,
        EVEN=runs % in_runs == 0,
        BIAS=bias is not None,
        RUNS=in_runs,
        GROUP_TILES=NEIGHBOUR_ROW_TILES,
        **options,
    )
    return output


def _config(weight: PackedWeight, output: Tensor) -> Config:
    default = CANDIDATE_CONFIGS[0 if multiplies_by_groups(output.device) else 1]
    if not weight.by_output and multiplies_by_groups(output.device) and not is_hopper(output.device):
        default = CANDIDATE_CONFIGS[-1]
    shape = f"{str(output.dtype).removeprefix('torch.')},{weight.name},inputs={weight.inputs},outputs={weight.outputs}"
    return tuned("quantized_row_product", shape, output.device, default)


@launched_directly
@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x: tl.tensor,
    row_scales: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    runs: tl.tensor,
    stride: tl.tensor,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPED: tl.constexpr,
    SHARED: tl.constexpr,
    EVEN: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    RUNS: tl.constexpr,
    GROUP_TILES: tl.constexpr,
) -> None:
    STEP: tl.constexpr = RUNS * RUN_BYTES
    SUM: tl.constexpr = tl.int32 if KIND == "int8" and not GROUPED else tl.float32
    column_tiles = tl.cdiv(outputs, TILE)
    width = tl.zeros([], tl.int64) + outputs
    program = tl.program_id(0)
    # In groups of tiles of rows; in a group the outputs of all its tiles, then the next outputs.
    first_tile = program // (GROUP_TILES * column_tiles) * GROUP_TILES
    tiles_in_group = tl.minimum(tl.cdiv(rows, ROWS) - first_tile, GROUP_TILES)
    place_in_group = program % (GROUP_TILES * column_tiles)
    row = (first_tile + place_in_group % tiles_in_group) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    output = place_in_group // tiles_in_group * TILE + tl.arange(0, TILE)
    inside = output < outputs
    # Rows and outputs behind the last are the first: they are there, and not stored.
    x_rows, columns = tl.where(valid, row, 0), tl.where(inside, output, 0)

    byte = tl.arange(0, STEP)
    values = x + (x_rows.to(tl.int64) * (runs * RUN_BYTES))[:, None] + byte[None, :]
    begin = (
        codes + (byte // RUN_BYTES * (width * RUN_BYTES) + byte % RUN_BYTES)[:, None] + (columns * RUN_BYTES)[None, :]
    )
    total = tl.zeros([ROWS, TILE], SUM)
    # Scales are loaded a step ahead where a tile has a single scale of weights: registers have room for that one.
    next_row_scale, next_scale = row_scales, scales
    if SHARED:
        scales += place_in_group // tiles_in_group * TILE
        next_row_scale, next_scale = tl.load(row_scales + x_rows), tl.load(scales).to(tl.float32)
    for step in range(tl.cdiv(runs, RUNS)):
        addresses = begin + step * RUNS * (width * RUN_BYTES)
        if EVEN:
            left, right = tl.load(values + step * STEP), tl.load(addresses)
        else:
            is_run = step * RUNS + byte // RUN_BYTES < runs
            left = tl.load(values + step * STEP, mask=is_run[None, :], other=0.0)
            right = tl.load(addresses, mask=is_run[:, None], other=0.0)
        if SHARED:
            factor = next_row_scale * next_scale
            group = tl.minimum((step + 1) * STEP, (runs - 1) * RUN_BYTES) // GROUP
            next_row_scale = tl.load(row_scales + group * rows.to(tl.int64) + x_rows)
            next_scale = tl.load(scales + group * width).to(tl.float32)
            total = add_product(total, left, right, factor[:, None], KIND, GROUPED)
        elif GROUPED:
            group = (step * STEP) // GROUP
            row_scale = tl.load(row_scales + group * rows.to(tl.int64) + x_rows)
            scale = tl.load(scales + group * width + columns).to(tl.float32)
            total = add_product(total, left, right, row_scale[:, None] * scale[None, :], KIND, GROUPED)
        else:
            total = add_product(total, left, right, 1.0, KIND, GROUPED)

    found = total.to(tl.float32)
    if not GROUPED:
        found *= tl.load(row_scales + x_rows)[:, None] * tl.load(scales + columns).to(tl.float32)[None, :]
    if BIAS:
        found += tl.load(bias + columns).to(tl.float32)[None, :]
    target = y + row.to(tl.int64)[:, None] * stride + output[None, :]
    tl.store(target, found.to(y.dtype.element_ty), mask=valid[:, None] & inside[None, :])


@triton.jit
def add_product(
    total: tl.tensor, left: tl.tensor, right: tl.tensor, scale: tl.tensor, KIND: tl.constexpr, GROUPED: tl.constexpr
) -> tl.tensor:
    """Adds a step's product of bytes to a `total`; with groups, times a `scale` of the same shape or narrower."""
    if GROUPED:
        return total + tl.dot(left, right).to(tl.float32) * scale
    elif KIND == "int8":
        return tl.dot(left, right, total, out_dtype=tl.int32)
    else:
        return tl.dot(left, right, total, max_num_imprecise_acc=left.shape[1])


def reference(rows: QuantizedRows, weight: PackedWeight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Computes the same with torch operators, in fp64."""
    y = dequantized(rows) @ unpacked(weight).t()
    return (y if bias is None else y + bias.double()).to(dtype)
