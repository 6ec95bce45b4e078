"""Multiplies tokens by packed weights of the experts that they use, all experts in one launch.

`expert_products.py` has the formulas and the division into programs; tiles are shared (`pair_tiles.py`). Codes are
dequantized in registers as in `quantized/steps.py`, and a tile of weights is the first operand of a product.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import is_hopper, multiplies_by_groups
from kernels.gate import Activation
from kernels.launching import launched_directly
from kernels.moe.pair_tiles import place_of, store_pairs
from kernels.moe.sort_by_expert import Tiles
from kernels.quantized.four_bits import loads_ahead, products
from kernels.quantized.packed import PackedWeight
from kernels.quantized.product import unsupported
from kernels.quantized.rows import RowFormat
from kernels.quantized.steps import add_step, in_step, load_codes, load_inputs, load_terms
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

FEW_ROWS = 16
CANDIDATE_CONFIGS = (
    Config({"TILE": 64, "RUNS": 2, "GROUP": 1}, warps=4, stages=4),
    Config({"TILE": 64, "RUNS": 2, "GROUP": 8}, warps=8, stages=3),
    Config({"TILE": 64, "RUNS": 4, "GROUP": 1}, warps=4, stages=3),
    Config({"TILE": 128, "RUNS": 1, "GROUP": 1}, warps=4, stages=4),
    Config({"TILE": 128, "RUNS": 2, "GROUP": 8}, warps=8, stages=3),
    Config({"TILE": 32, "RUNS": 1, "GROUP": 4}, warps=8, stages=2),
)
"""The first two are the defaults of few rows of a tile and of more, the last is that of fp32."""
HOPPER_CONFIG = CANDIDATE_CONFIGS[4]
"""The default of more rows there: the registers of 8 warps hold no operand of 64 rows in the layout that Hopper's
products want: an operand passes through shared memory in slices, with 33 to 65 barriers a step; of 128 rows with 9."""

TENSOR_MEMORY_CONFIG = Config({"TILE": 32, "RUNS": 1, "GROUP": 8}, warps=4, stages=3)
"""The default of more rows and 4 bits on Blackwell in data centers: a tile of 64 would take 544 of 512 columns of its
tensor memory."""


class PackedExpert(NamedTuple):
    """One product of all experts of a layer."""

    weight: PackedWeight  # codes [experts, runs, out, 32], scales [experts, groups, out]
    bias: Tensor | None  # [experts, out]
    form: RowFormat | None = None  # of the rows of many tokens; None: unquantized


def gate_up(
    x: Tensor, product: PackedExpert, tiles: Tiles, used: int, activation: Activation, *, config: Config | None = None
) -> Tensor:
    """Computes the first product and the activation, for each pair: see `kernels.moe.expert_products.gate_up`.

    Example: x `[32, 2880]`, a product of MXFP4 weights `[32, 5760, 2880]`, 4 used: `[128, 2880]`.
    """
    gated = x.new_empty((len(x) * used, product.weight.outputs // 2))
    _launch(x, product, None, tiles, gated, used, activation, config)
    return gated


def down(gated: Tensor, product: PackedExpert, tiles: Tiles, shares: Tensor, *, config: Config | None = None) -> Tensor:
    """Multiplies each pair's row by its expert's weights, and by its share: see `kernels.moe.expert_products.down`.

    Example: gated `[128, 2880]`, a product of MXFP4 weights `[32, 2880, 2880]`, shares `[32, 4]`: `[128, 2880]`.
    """
    assert shares.numel() == len(gated) and shares.dtype == torch.float32 and shares.is_contiguous()
    weighted_outputs = gated.new_empty((len(gated), product.weight.outputs))
    _launch(gated, product, shares, tiles, weighted_outputs, 1, "silu", config)
    return weighted_outputs


def _default(x: Tensor, rows: int, bits: int = 8) -> Config:
    if x.dtype == torch.float32:
        return CANDIDATE_CONFIGS[-1]
    if rows <= FEW_ROWS:
        return CANDIDATE_CONFIGS[0]
    if is_hopper(x.device):
        return HOPPER_CONFIG
    return TENSOR_MEMORY_CONFIG if multiplies_by_groups(x.device) and bits == 4 else CANDIDATE_CONFIGS[1]


def _launch(
    x: Tensor,
    product: PackedExpert,
    shares: Tensor | None,
    tiles: Tiles,
    output: Tensor,
    used: int,
    activation: Activation,
    config: Config | None,
) -> None:
    weight, bias, _ = product
    assert x.shape[1] == weight.inputs and x.is_contiguous() and not unsupported(x.dtype) and weight.codes.dim() == 4
    assert bias is None or (bias.shape == (len(weight.codes), weight.outputs) and bias.is_contiguous())
    shape = f"{str(x.dtype).removeprefix('torch.')},{weight.name},rows={tiles.rows}"
    shape += f",inputs={weight.inputs},outputs={weight.outputs}"
    kernel = "quantized_experts" if tiles.rows == FEW_ROWS else "quantized_experts_prefill"
    options = (
        config or tuned(kernel, shape, x.device, _default(x, tiles.rows, 4 if weight.kind in ("int4", "fp4") else 8))
    ).options()
    count, width = len(tiles.owners), output.shape[1]
    if not count:
        return
    in_runs, offsets = weight.runs_of_step(options.pop("RUNS")), weight.offsets
    _multiply[(count * tile_count(width, options["TILE"]),)](
        x,
        weight.codes,
        weight.scales,
        weight.scales if offsets is None else offsets,
        x if bias is None else bias,
        x if shares is None else shares,
        tiles.pairs,
        tiles.owners,
        output,
        USED=used,
        INPUTS=weight.inputs,
        WIDTH=width,
        STEPS=tile_count(weight.codes.shape[1], in_runs),
        ALL_RUNS=weight.codes.shape[1],
        GROUPS=weight.scales.shape[1],
        ROWS=tiles.rows,
        BIAS=bias is not None,
        GATED=shares is None,
        ACTIVATION=activation,
        KIND=weight.kind,
        IN_GROUP=weight.even_group,
        SCALED=not weight.by_output,
        OFFSETS=offsets is not None,
        EVEN=weight.inputs % (in_runs * weight.in_run) == 0,
        RUNS=in_runs,
        AHEAD=loads_ahead(tiles.rows, x.device),
        **options,
    )


@launched_directly
@triton.jit
def _multiply(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    bias: tl.tensor,
    shares: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    output: tl.tensor,
    USED: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
    ALL_RUNS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    KIND: tl.constexpr,
    IN_GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    OFFSETS: tl.constexpr,
    EVEN: tl.constexpr,
    RUNS: tl.constexpr,
    AHEAD: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    OUTPUTS: tl.constexpr = 2 * WIDTH if GATED else WIDTH
    tile, first_column = place_of(WIDTH, TILE, GROUP)
    owner = tl.load(owners + tile).to(tl.int64)
    if owner < 0:
        return

    pair = tl.load(pairs + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    own = x + tl.where(pair >= 0, pair, 0) // USED * INPUTS  # the rows that fill a tile are any, and are not stored
    column = first_column + tl.arange(0, TILE)
    columns = tl.where(
        column < WIDTH, column, 0
    )  # columns behind the last are the first: they are there, and not stored either
    codes += owner * (ALL_RUNS * OUTPUTS * 32)
    scales += owner * (GROUPS * OUTPUTS)
    offsets += owner * (GROUPS * OUTPUTS)
    if KIND == "int4" or KIND == "fp4":
        up_columns = columns + WIDTH if GATED else columns
        gate, up = products(
            own,
            codes,
            scales,
            offsets,
            columns,
            up_columns,
            0,
            STEPS,
            INPUTS,
            OUTPUTS,
            ALL_RUNS,
            GROUPS,
            KIND,
            IN_GROUP,
            SCALED,
            OFFSETS,
            EVEN,
            RUNS,
            AHEAD,
            GATED,
        )
    else:
        gate = tl.zeros([TILE, ROWS], tl.float32)
        up = tl.zeros([TILE, ROWS], tl.float32)
        # Scales and offsets of both halves of a step, of gate and of up, are loaded one step ahead.
        gate_scale, gate_scale_2, gate_offset, gate_offset_2 = load_terms(
            scales, offsets, columns, 0, OUTPUTS, GROUPS, IN_GROUP, OFFSETS, RUNS
        )
        up_scale, up_scale_2, up_offset, up_offset_2 = gate_scale, gate_scale_2, gate_offset, gate_offset_2
        if GATED:
            up_scale, up_scale_2, up_offset, up_offset_2 = load_terms(
                scales, offsets, columns + WIDTH, 0, OUTPUTS, GROUPS, IN_GROUP, OFFSETS, RUNS
            )
        for step in range(0, STEPS):
            first_input = step * in_step(RUNS)
            x_tile = load_inputs(own, first_input, INPUTS, EVEN, RUNS)
            packed = load_codes(codes, columns, step * RUNS, OUTPUTS, ALL_RUNS, EVEN, RUNS)
            scale, scale_2, offset, offset_2 = gate_scale, gate_scale_2, gate_offset, gate_offset_2
            if SCALED:
                first_input += in_step(RUNS)
                gate_scale, gate_scale_2, gate_offset, gate_offset_2 = load_terms(
                    scales, offsets, columns, first_input, OUTPUTS, GROUPS, IN_GROUP, OFFSETS, RUNS
                )
            gate = add_step(
                gate, packed, x_tile, scale, scale_2, offset, offset_2, KIND, IN_GROUP, SCALED, OFFSETS, RUNS
            )
            if GATED:
                packed = load_codes(codes, columns + WIDTH, step * RUNS, OUTPUTS, ALL_RUNS, EVEN, RUNS)
                scale, scale_2, offset, offset_2 = up_scale, up_scale_2, up_offset, up_offset_2
                if SCALED:
                    up_columns = columns + WIDTH
                    up_scale, up_scale_2, up_offset, up_offset_2 = load_terms(
                        scales, offsets, up_columns, first_input, OUTPUTS, GROUPS, IN_GROUP, OFFSETS, RUNS
                    )
                up = add_step(
                    up, packed, x_tile, scale, scale_2, offset, offset_2, KIND, IN_GROUP, SCALED, OFFSETS, RUNS
                )
    if not SCALED:
        gate *= tl.load(scales + columns).to(tl.float32)[:, None]
        if GATED:
            up *= tl.load(scales + columns + WIDTH).to(tl.float32)[:, None]
    bias += owner * OUTPUTS
    store_pairs(gate, up, bias, shares, output, pair[None, :], column[:, None], WIDTH, BIAS, GATED, ACTIVATION)
