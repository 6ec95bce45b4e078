"""Multiplies rows by a packed weight: y = x W^T + b, for up to some hundred rows.

    y[r, o] = sum_i x[r, i] (scales[i // group, o] v[o, i] + offsets[i // group, o]) + b[o]

(Weights of 4 bits under values of 16: Frantar et al., 2024, https://arxiv.org/abs/2408.11743; parts of a sum for few
rows: Hoque et al., 2024, https://arxiv.org/abs/2402.00025.) A program makes a tile of outputs for a tile of rows;
weights are read once for all rows of a tile. Few outputs would leave processors idle, so with up to 128 rows the
reduction is split (split-K), and a second launch adds up the parts in order. Results are deterministic, and a row does
not depend on the rows beside it while `rows_for` gives the same tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import is_hopper, multiplies_by_groups, processors
from kernels.launching import launched_directly
from kernels.quantized.four_bits import loads_ahead, products
from kernels.quantized.packed import PackedWeight
from kernels.quantized.packed import reference as dequantized
from kernels.quantized.steps import add_step, in_step, load_codes, load_inputs, load_terms
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

ROW_TILES = (16, 32, 64, 128)
"""Rows of a tile, from the minimum of the tensor cores up."""
MAX_SPLIT_K_ROWS = ROW_TILES[-1]
"""Up to this many rows fit one row tile; the reduction is then split (split-K)."""
FEW_ROWS_CONFIG = Config({"TILE": 64, "RUNS": 4}, warps=4, stages=4)
SOME_ROWS_CONFIG = Config({"TILE": 128, "RUNS": 2}, warps=8, stages=3)
FOUR_BITS_CONFIG = Config({"TILE": 128, "RUNS": 1}, warps=4, stages=4)
"""Two tiles of a warp group, so that twice as many weights share a step's other costs."""
HOPPER_CONFIG = Config({"TILE": 128, "RUNS": 4}, warps=4, stages=4)
"""The same for 8 bits: other devices' products take fewer outputs at once, and gain less than larger tiles cost."""
TENSOR_MEMORY_CONFIG = Config({"TILE": 64, "RUNS": 2}, warps=4, stages=3)
"""The default of full tiles of rows with 4 bits on data center Blackwell: larger tiles do not fit its tensor memory."""
FP32_CONFIG = Config({"TILE": 32, "RUNS": 1}, warps=8, stages=2)
CANDIDATE_CONFIGS = (
    FEW_ROWS_CONFIG,
    SOME_ROWS_CONFIG,
    FOUR_BITS_CONFIG,
    HOPPER_CONFIG,
    Config({"TILE": 64, "RUNS": 2}, warps=4, stages=5),
    Config({"TILE": 128, "RUNS": 4}, warps=8, stages=3),
    Config({"TILE": 32, "RUNS": 4}, warps=2, stages=4),
    FP32_CONFIG,
)
"""The first two are the defaults of up to 32 rows and of more, the next two those of up to 32 rows with 4 bits, and on
Hopper with 8, the last one that of fp32."""
PROGRAMS_PER_PROCESSOR = 4
"""Minimum number of programs on a processor, so that one reads while another waits."""
MIN_STEPS_PER_PART, MAX_PARTS = 4, 16
"""Minimum steps of a split-K part, since shorter parts end before their loads arrive; maximum number of parts."""
NEIGHBOUR_ROW_TILES = 8
"""Row tiles with consecutive programs for each output tile, so that the weights come from the cache."""
JOIN_TILE = 512


def unsupported(dtype: torch.dtype) -> str:
    """Returns one sentence that says why rows in such a format cannot be multiplied; empty if supported."""
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"quantized weights multiply fp32, fp16 and bf16, not {str(dtype).removeprefix('torch.')}"
    return ""


def rows_for(rows: int) -> int:
    return next((tile for tile in ROW_TILES if rows <= tile), ROW_TILES[-1])


def product(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    output: Tensor | None = None,
    *,
    config: Config | None = None,
    parts: int | None = None,
) -> Tensor:
    """Multiplies rows by a packed weight.

    Args:
        x: `[rows, in]` fp32, bf16 or fp16, contiguous.
        weight: packed, `[out, in]`.
        bias: `[out]`, contiguous, in any of these formats.
        output: `[rows, out]` in the format of x to write to, whose rows are contiguous; by default a new one.
        config: launch config; by default the tuned config.
        parts: split-K parts; by default as many as fill the device.

    Returns the output.

    Example: x `[32, 4096]`, weight int4 `[6144, 4096]` in groups of 32: output `[32, 6144]`.
    """
    rows, inputs = x.shape
    outputs, by_output = weight.outputs, weight.by_output
    y = x.new_empty((rows, outputs)) if output is None else output
    assert inputs == weight.inputs and x.is_contiguous() and not unsupported(x.dtype) and weight.codes.dim() == 3
    assert y.shape == (rows, outputs) and y.stride(1) == 1 and y.dtype == x.dtype
    assert bias is None or (bias.shape == (outputs,) and bias.is_contiguous())
    if not rows:
        return y
    tile = rows_for(rows)
    options = (config or _config(x, weight, tile, rows > MAX_SPLIT_K_ROWS)).options()
    runs = len(weight.codes)
    in_runs = weight.runs_of_step(options.pop("RUNS"))
    steps, tiles = tile_count(runs, in_runs), tile_count(outputs, options["TILE"])
    splits = parts or (parts_of(steps, tiles, x.device) if rows <= MAX_SPLIT_K_ROWS else 1)
    length = tile_count(steps, splits)
    splits = tile_count(steps, length)
    sums = y if splits == 1 else x.new_empty((splits, rows, outputs), dtype=torch.float32)
    offsets = weight.offsets
    _multiply[tiles * tile_count(rows, tile), splits](
        x,
        weight.codes,
        weight.scales,
        weight.scales if offsets is None else offsets,
        x if bias is None else bias,
        sums,
        rows,
        inputs,
        outputs,
        runs,
        len(weight.scales),
        sums.stride(-2),
        length,
        KIND=weight.kind,
        GROUP=weight.even_group,
        SCALED=not by_output,
        OFFSETS=offsets is not None,
        EVEN=inputs % (in_runs * weight.in_run) == 0,
        BIAS=bias is not None and splits == 1,
        SPLIT=splits > 1,
        ROWS=tile,
        RUNS=in_runs,
        AHEAD=loads_ahead(tile, x.device),
        GROUP_TILES=NEIGHBOUR_ROW_TILES,
        **options,
    )
    if splits > 1:
        _join[rows, tile_count(outputs, JOIN_TILE)](
            sums,
            weight.scales,
            x if bias is None else bias,
            y,
            rows,
            outputs,
            y.stride(0),
            splits,
            SCALED=by_output,
            BIAS=bias is not None,
            TILE=JOIN_TILE,
        )
    return y


def parts_of(steps: int, tiles: int, device: torch.device) -> int:
    """Returns the number of split-K parts for a reduction of `steps` steps and `tiles` output tiles."""
    return max(1, min(PROGRAMS_PER_PROCESSOR * processors(device) // tiles, steps // MIN_STEPS_PER_PART, MAX_PARTS))


def _config(x: Tensor, weight: PackedWeight, tile: int, many: bool) -> Config:
    if x.dtype == torch.float32:
        default = FP32_CONFIG
    elif tile == ROW_TILES[-1] and weight.kind in ("int4", "fp4") and _has_tensor_memory(x.device):
        default = TENSOR_MEMORY_CONFIG
    elif tile > 2 * ROW_TILES[0]:
        default = SOME_ROWS_CONFIG
    elif weight.kind in ("int4", "fp4"):
        default = FOUR_BITS_CONFIG
    else:
        default = HOPPER_CONFIG if is_hopper(x.device) else FEW_ROWS_CONFIG
    shape = f"{str(x.dtype).removeprefix('torch.')},{weight.name},rows={'many' if many else tile}"
    shape += f",inputs={weight.inputs},outputs={weight.outputs}"
    return tuned("quantized_product_prefill" if many else "quantized_product", shape, x.device, default)


def _has_tensor_memory(device: torch.device) -> bool:
    """Returns whether this is data center Blackwell, whose sums and converted weights lie in a memory of their own."""
    return multiplies_by_groups(device) and not is_hopper(device)


# The numbers of rows and of steps change with the batch and the device: another kernel would be compiled meanwhile.
@launched_directly
@triton.jit(do_not_specialize=["rows", "length"])
def _multiply(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    runs: tl.tensor,
    groups: tl.tensor,
    stride: tl.tensor,
    length: tl.tensor,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    OFFSETS: tl.constexpr,
    EVEN: tl.constexpr,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    RUNS: tl.constexpr,
    AHEAD: tl.constexpr,
    GROUP_TILES: tl.constexpr,
) -> None:
    column_tiles = tl.cdiv(outputs, TILE)
    width = tl.zeros([], tl.int64) + outputs
    program, part = tl.program_id(0), tl.program_id(1)
    # In groups of tiles of rows; in a group the outputs of all its tiles, then the next outputs.
    first_tile = program // (GROUP_TILES * column_tiles) * GROUP_TILES
    tiles_in_group = tl.minimum(tl.cdiv(rows, ROWS) - first_tile, GROUP_TILES)
    place_in_group = program % (GROUP_TILES * column_tiles)
    row = (first_tile + place_in_group % tiles_in_group) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    output = place_in_group // tiles_in_group * TILE + tl.arange(0, TILE)
    inside = output < outputs
    columns = tl.where(inside, output, 0)  # outputs behind the last are the first: they are there, and not stored
    x_rows = x + tl.where(valid, row, 0).to(tl.int64) * inputs

    first = part * length
    end = tl.minimum(first + length, tl.cdiv(runs, RUNS))
    if KIND == "int4" or KIND == "fp4":
        total, _ = products(
            x_rows,
            codes,
            scales,
            offsets,
            columns,
            columns,
            first,
            end,
            inputs,
            width,
            runs,
            groups,
            KIND,
            GROUP,
            SCALED,
            OFFSETS,
            EVEN,
            RUNS,
            AHEAD,
            False,
        )
    else:
        total = tl.zeros([TILE, ROWS], tl.float32)
        next_scale, next_scale_2, next_offset, next_offset_2 = load_terms(
            scales, offsets, columns, first * in_step(RUNS), width, groups, GROUP, OFFSETS, RUNS
        )
        for step in range(first, end):
            tile = load_codes(codes, columns, step * RUNS, width, runs, EVEN, RUNS)
            first_input = step * in_step(RUNS)
            x_tile = load_inputs(x_rows, first_input, inputs, EVEN, RUNS)
            scale, scale_2, offset, offset_2 = next_scale, next_scale_2, next_offset, next_offset_2
            if SCALED:
                first_input += in_step(RUNS)
                next_scale, next_scale_2, next_offset, next_offset_2 = load_terms(
                    scales, offsets, columns, first_input, width, groups, GROUP, OFFSETS, RUNS
                )
            total = add_step(total, tile, x_tile, scale, scale_2, offset, offset_2, KIND, GROUP, SCALED, OFFSETS, RUNS)

    if not SCALED and not SPLIT:
        total *= tl.load(scales + columns).to(tl.float32)[:, None]
    if BIAS:
        total += tl.load(bias + columns).to(tl.float32)[:, None]
    target = y + (part.to(tl.int64) * rows + row[None, :]) * stride + output[:, None]
    tl.store(target, total.to(y.dtype.element_ty), mask=valid[None, :] & inside[:, None])


@launched_directly
@triton.jit(do_not_specialize=["rows", "parts"])
def _join(
    sums: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    stride: tl.tensor,
    parts: tl.tensor,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = output < outputs
    total = tl.zeros([TILE], tl.float32)
    for part in range(parts):
        total += tl.load(sums + (part * rows.to(tl.int64) + row) * outputs + output, mask=inside, other=0.0)
    if SCALED:
        total *= tl.load(scales + output, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        total += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * stride + output, total.to(y.dtype.element_ty), mask=inside)


def reference(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """Computes the same with torch operators, in fp64."""
    y = x.double() @ dequantized(weight).t()
    return (y if bias is None else y + bias.double()).to(x.dtype)
