"""Multiplies quantized tokens by packed weights of 8 bits of the experts that they use, for many tokens.

`expert_products.py` has the formulas and the division into programs, `quantized/row_product.py` the products of bytes
and their scales. A token is quantized once for all of its experts; what is between the two products is quantized by a
launch of its own, for a scale needs a whole row.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import multiplies_by_groups
from kernels.gate import Activation
from kernels.launching import launched_directly
from kernels.moe.packed_products import PackedExpert
from kernels.moe.pair_tiles import place_of, store_pairs
from kernels.moe.sort_by_expert import Tiles
from kernels.quantized.packed import BLOCK_OUTPUTS
from kernels.quantized.product import unsupported
from kernels.quantized.row_product import add_product, row_format
from kernels.quantized.rows import ROW_DTYPES, QuantizedRows
from kernels.quantized.steps import RUN_BYTES
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 64, "RUNS": 4, "GROUP": 8}, warps=8, stages=4),
    Config({"TILE": 128, "RUNS": 4, "GROUP": 8}, warps=8, stages=4),
    Config({"TILE": 64, "RUNS": 2, "GROUP": 8}, warps=8, stages=4),
    Config({"TILE": 128, "RUNS": 2, "GROUP": 8}, warps=8, stages=4),
)
"""Defaults of devices whose products take operands from shared memory: of a first product, which has two sums, and of a
second one; then the same of other devices."""
FULL_WARPS_ROWS = 128
"""Rows of a tile from which devices without warp-group products use all warps of a config."""


def gate_up(
    rows: QuantizedRows,
    product: PackedExpert,
    tiles: Tiles,
    used: int,
    activation: Activation,
    dtype: torch.dtype,
    *,
    config: Config | None = None,
) -> Tensor:
    """Computes the first product and the activation, for each pair: see `kernels.moe.expert_products.gate_up`.

    Example: 512 rows of 2048 values, a product of fp8 weights `[128, 1536, 2048]`, 8 used: `[4096, 768]`.
    """
    pairs, width = rows.values.shape[0] * used, product.weight.outputs // 2
    gated = rows.scales.new_empty((pairs, width), dtype=dtype)
    _launch(rows, product, None, tiles, gated, used, activation, config)
    return gated


def down(
    rows: QuantizedRows,
    product: PackedExpert,
    tiles: Tiles,
    shares: Tensor,
    dtype: torch.dtype,
    *,
    config: Config | None = None,
) -> Tensor:
    """Multiplies each pair's row by its expert's weights, and by its share: see `kernels.moe.expert_products.down`.

    Example: 4096 rows of 768 values, a product of fp8 weights `[128, 2048, 768]`, shares `[512, 8]`: `[4096, 2048]`.
    """
    pairs = rows.values.shape[0]
    assert shares.numel() == pairs and shares.dtype == torch.float32 and shares.is_contiguous()
    weighted_outputs = rows.scales.new_empty((pairs, product.weight.outputs), dtype=dtype)
    _launch(rows, product, shares, tiles, weighted_outputs, 1, "silu", config)
    return weighted_outputs


def _launch(
    rows: QuantizedRows,
    product: PackedExpert,
    shares: Tensor | None,
    tiles: Tiles,
    output: Tensor,
    used: int,
    activation: Activation,
    config: Config | None,
) -> None:
    weight, bias = product.weight, product.bias
    device = output.device
    assert rows.inputs == weight.inputs and rows.form == row_format(weight, device) and weight.codes.dim() == 4
    assert rows.values.is_contiguous() and rows.scales.is_contiguous() and not unsupported(output.dtype)
    assert bias is None or (bias.shape == (len(weight.codes), weight.outputs) and bias.is_contiguous())
    shape = f"{str(output.dtype).removeprefix('torch.')},{weight.name},rows={tiles.rows}"
    shape += f",inputs={weight.inputs},outputs={weight.outputs}"
    default = CANDIDATE_CONFIGS[(shares is not None) + 2 * (not multiplies_by_groups(device))]
    if tiles.rows < FULL_WARPS_ROWS and not multiplies_by_groups(device):
        default = replace(default, warps=default.warps // 2)  # 8 warps would leave each thread too few registers
    options = (config or tuned("quantized_experts_rows", shape, device, default)).options()
    count, width, runs = len(tiles.owners), output.shape[1], weight.codes.shape[1]
    if not count:
        return
    in_runs, grouped, tile = weight.runs_of_step(options.pop("RUNS")), weight.scales.shape[1] > 1, options["TILE"]
    _multiply[(count * tile_count(width, tile),)](
        rows.values,
        rows.scales,
        weight.codes.view(ROW_DTYPES[rows.form.kind]),
        weight.scales,
        rows.scales if bias is None else bias,
        rows.scales if shares is None else shares,
        tiles.pairs,
        tiles.owners,
        output,
        rows.values.shape[0],
        USED=used,
        WIDTH=width,
        ALL_RUNS=runs,
        GROUPS=weight.scales.shape[1],
        ROWS=tiles.rows,
        BIAS=bias is not None,
        GATED=shares is None,
        ACTIVATION=activation,
        KIND=rows.form.kind,
        IN_GROUP=rows.form.group,
        GROUPED=grouped,
        SHARED=grouped and weight.by_block and BLOCK_OUTPUTS % tile == 0 and width % tile == 0,
        EVEN=runs % in_runs == 0,
        RUNS=in_runs,
        **options,
    )


# The number of rows changes with the batch: another kernel would be compiled while a request waits.
@launched_directly
@triton.jit(do_not_specialize=["count"])
def _multiply(
    x: tl.tensor,
    row_scales: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    shares: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    output: tl.tensor,
    count: tl.tensor,
    USED: tl.constexpr,
    WIDTH: tl.constexpr,
    ALL_RUNS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    KIND: tl.constexpr,
    IN_GROUP: tl.constexpr,
    GROUPED: tl.constexpr,
    SHARED: tl.constexpr,
    EVEN: tl.constexpr,
    TILE: tl.constexpr,
    RUNS: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    STEP: tl.constexpr = RUNS * RUN_BYTES
    SUM: tl.constexpr = tl.int32 if KIND == "int8" and not GROUPED else tl.float32
    OUTPUTS: tl.constexpr = 2 * WIDTH if GATED else WIDTH
    tile, first_column = place_of(WIDTH, TILE, GROUP)
    owner = tl.load(owners + tile).to(tl.int64)
    if owner < 0:
        return

    pair = tl.load(pairs + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row = tl.where(pair >= 0, pair, 0) // USED  # padding rows of a tile read any row, and are not stored
    column = first_column + tl.arange(0, TILE)
    columns = tl.where(column < WIDTH, column, 0)  # columns behind the last are the first, and are not stored either
    byte, outputs = tl.arange(0, STEP), tl.zeros([], tl.int64) + OUTPUTS
    values = x + (row * (ALL_RUNS * RUN_BYTES))[:, None] + byte[None, :]
    addresses = codes + owner * (ALL_RUNS * OUTPUTS * RUN_BYTES) + (columns * RUN_BYTES)[None, :]
    addresses += (byte // RUN_BYTES * (OUTPUTS * RUN_BYTES) + byte % RUN_BYTES)[:, None]
    scales += owner * (GROUPS * OUTPUTS)
    row_scales += row
    gate = tl.zeros([ROWS, TILE], SUM)
    up = tl.zeros([ROWS, TILE], SUM)
    # Scales are loaded a step ahead where a tile has a single scale of weights: registers have room for that one.
    next_row_scale, next_scale, next_other = row_scales, scales, scales
    if SHARED:
        next_row_scale, next_scale = tl.load(row_scales), tl.load(scales + first_column).to(tl.float32)
        next_other = tl.load(scales + (OUTPUTS - WIDTH) + first_column).to(tl.float32)
    for step in range(0, (ALL_RUNS + RUNS - 1) // RUNS):
        step_codes = addresses + step * RUNS * (outputs * RUN_BYTES)
        is_run = step * RUNS + byte // RUN_BYTES < ALL_RUNS
        if EVEN:
            left, right = tl.load(values + step * STEP), tl.load(step_codes)
        else:
            left = tl.load(values + step * STEP, mask=is_run[None, :], other=0.0)
            right = tl.load(step_codes, mask=is_run[:, None], other=0.0)
        scale, up_scale = 1.0, 1.0
        if SHARED:
            scale, up_scale = (next_row_scale * next_scale)[:, None], (next_row_scale * next_other)[:, None]
            group = tl.minimum((step + 1) * STEP // IN_GROUP, GROUPS - 1)
            next_row_scale = tl.load(row_scales + group * count.to(tl.int64))
            next_scale = tl.load(scales + group * OUTPUTS + first_column).to(tl.float32)
            if GATED:
                next_other = tl.load(scales + (group * OUTPUTS + WIDTH) + first_column).to(tl.float32)
        elif GROUPED:
            group = step * STEP // IN_GROUP
            row_scale = tl.load(row_scales + group * count.to(tl.int64))[:, None]
            scale = row_scale * tl.load(scales + group * OUTPUTS + columns).to(tl.float32)[None, :]
            if GATED:
                up_scale = row_scale * tl.load(scales + (group * OUTPUTS + WIDTH) + columns).to(tl.float32)[None, :]
        gate = add_product(gate, left, right, scale, KIND, GROUPED)
        if GATED:
            if EVEN:
                right = tl.load(step_codes + WIDTH * RUN_BYTES)
            else:
                right = tl.load(step_codes + WIDTH * RUN_BYTES, mask=is_run[:, None], other=0.0)
            up = add_product(up, left, right, up_scale, KIND, GROUPED)
    found, gated = gate.to(tl.float32), up.to(tl.float32)
    if not GROUPED:
        scale_of_rows = tl.load(row_scales)[:, None]
        found *= scale_of_rows * tl.load(scales + columns).to(tl.float32)[None, :]
        if GATED:
            gated *= scale_of_rows * tl.load(scales + WIDTH + columns).to(tl.float32)[None, :]
    bias += owner * OUTPUTS
    store_pairs(found, gated, bias, shares, output, pair[:, None], column[None, :], WIDTH, BIAS, GATED, ACTIVATION)
