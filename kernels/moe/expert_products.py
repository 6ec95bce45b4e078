"""Multiplies tokens by the weights of the experts that they use, all experts in one launch.

    gated[p]  = activation(x[t] G_e^T + b, x[t] U_e^T + b)                pair p = t * used + i, expert e = chosen[t, i]
    given[p]  = shares[p] (gated[p] D_e^T + b)
    output[t] = sum_i given[t * used + i]

(Megablocks: Gale et al., 2022, https://arxiv.org/abs/2211.15841.) Pairs come as tiles of one expert each
(sort_by_expert.py); a tile times some columns of that expert's weights is a program. Rows are read from where their
token is, and written where their pair is, so nothing is gathered or scattered in passes of their own. Programs of
unused tiles end at once. Each token's sum goes over its experts in order: the same input gives the same bits.

Few rows to an expert: its weights are what takes time, and each is read by one program. Many rows: neighbouring
programs take up to `GROUP` tiles of the same columns, so that the weights come from the cache for all but the first.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gate import Activation
from kernels.launching import launched_directly
from kernels.moe.pair_tiles import place_of, store_pairs
from kernels.moe.sort_by_expert import Tiles
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

FEW_ROWS, SOME_ROWS, MANY_ROWS = 16, 64, 128
"""Rows of a tile: as few as tensor cores take, as few as they multiply at their full rate, and more."""

CANDIDATE_CONFIGS = (
    Config({"TILE": 32, "DEPTH": 128, "GROUP": 1}, warps=4, stages=4),
    Config({"TILE": 64, "DEPTH": 64, "GROUP": 8}, warps=4, stages=3),
    Config({"TILE": 64, "DEPTH": 64, "GROUP": 8}, warps=8, stages=3),
    Config({"TILE": 64, "DEPTH": 128, "GROUP": 1}, warps=4, stages=3),
    Config({"TILE": 32, "DEPTH": 256, "GROUP": 1}, warps=4, stages=3),
    Config({"TILE": 128, "DEPTH": 64, "GROUP": 8}, warps=8, stages=3),
    Config({"TILE": 32, "DEPTH": 32, "GROUP": 4}, warps=8, stages=2),
)
"""Defaults for few, some and many rows; candidates; the default of a second product of many rows, which has one sum
where the first has two; and the default of fp32."""
SUM_TILE = 1024


class Expert(NamedTuple):
    """One product of all experts of a layer."""

    weight: Tensor  # [experts, out, in]
    bias: Tensor | None  # [experts, out]


def unsupported(dtype: torch.dtype) -> str:
    """Returns one sentence that says why experts in such a format cannot be computed; empty if supported."""
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"experts are supported in fp32, fp16 and bf16, not {str(dtype).removeprefix('torch.')}"
    return ""


def rows_for(pairs: int, experts: int, dtype: torch.dtype) -> int:
    if pairs <= FEW_ROWS // 2 * experts:
        return FEW_ROWS
    return SOME_ROWS if pairs <= SOME_ROWS * experts or dtype == torch.float32 else MANY_ROWS


def row_counts(dtype: torch.dtype) -> tuple[int, ...]:
    return (FEW_ROWS, SOME_ROWS) if dtype == torch.float32 else (FEW_ROWS, SOME_ROWS, MANY_ROWS)


def gate_up(
    x: Tensor, product: Expert, tiles: Tiles, used: int, activation: Activation, *, config: Config | None = None
) -> Tensor:
    """Computes the first product and the activation, for each pair.

    Args:
        x: `[tokens, hidden]` in the weights' format, contiguous.
        product: gate and up, concatenated, `[experts, 2 x intermediate, hidden]`.
        tiles: the pairs, sorted.
        used: experts of a token.
        activation: of the gate and up.

    Returns `[tokens x used, intermediate]`, in the order of pairs.
    """
    width = product.weight.shape[1] // 2
    gated = x.new_empty((len(x) * used, width))
    _launch(x, product, None, tiles, gated, used, activation, config)
    return gated


def down(gated: Tensor, product: Expert, tiles: Tiles, shares: Tensor, *, config: Config | None = None) -> Tensor:
    """Multiplies each pair's row by its expert's weights, and by its share.

    Args:
        gated: `[pairs, intermediate]` as `gate_up` returns it.
        product: `[experts, hidden, intermediate]`.
        tiles: the pairs, sorted.
        shares: `[tokens, used]` fp32, contiguous.

    Returns `[pairs, hidden]`, in the order of pairs.
    """
    assert shares.numel() == len(gated) and shares.dtype == torch.float32 and shares.is_contiguous()
    weighted_outputs = gated.new_empty((len(gated), product.weight.shape[1]))
    _launch(gated, product, shares, tiles, weighted_outputs, 1, "silu", config)
    return weighted_outputs


def sum_over_experts(weighted_outputs: Tensor, chosen: Tensor, experts: int) -> Tensor:
    """Adds up `[tokens x used, hidden]` over each token's experts, in fp32; returns `[tokens, hidden]`.

    Rows of other ranks' experts, whose number in `chosen` `[tokens, used]` is `experts`, count as zeros.
    """
    (tokens, used), width = chosen.shape, weighted_outputs.shape[1]
    output = weighted_outputs.new_empty((tokens, width))
    if tokens:
        grid = (tokens, tile_count(width, SUM_TILE))
        _sum_used[grid](weighted_outputs, chosen, output, WIDTH=width, USED=used, EXPERTS=experts, TILE=SUM_TILE)
    return output


def _launch(
    x: Tensor,
    product: Expert,
    shares: Tensor | None,
    tiles: Tiles,
    output: Tensor,
    used: int,
    activation: Activation,
    config: Config | None,
) -> None:
    weight, bias = product
    _, outputs, inputs = weight.shape
    assert x.shape[1] == inputs and x.is_contiguous() and weight.is_contiguous() and x.dtype == weight.dtype
    assert bias is None or (bias.shape == weight.shape[:2] and bias.is_contiguous())
    assert not unsupported(x.dtype)
    width = output.shape[1]
    name = f"{str(x.dtype).removeprefix('torch.')},rows={tiles.rows},inputs={inputs},outputs={outputs}"
    kernel = "experts" if tiles.rows == FEW_ROWS else "experts_prefill"
    config = config or tuned(kernel, name, x.device, _default(x.dtype, tiles.rows, gated=shares is None))
    options = config.options()
    count = len(tiles.owners)
    if not count:
        return
    _multiply[(count * tile_count(width, options["TILE"]),)](
        x,
        weight,
        x if bias is None else bias,
        x if shares is None else shares,
        tiles.pairs,
        tiles.owners,
        output,
        USED=used,
        INPUTS=inputs,
        WIDTH=width,
        ROWS=tiles.rows,
        BIAS=bias is not None,
        GATED=shares is None,
        ACTIVATION=activation,
        **options,
    )


def _default(dtype: torch.dtype, rows: int, *, gated: bool) -> Config:
    if dtype == torch.float32:
        return CANDIDATE_CONFIGS[-1]
    return CANDIDATE_CONFIGS[(FEW_ROWS, SOME_ROWS, MANY_ROWS).index(rows) if gated or rows < MANY_ROWS else -2]


@launched_directly
@triton.jit
def _multiply(
    x: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    shares: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    output: tl.tensor,
    USED: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    OUTPUTS: tl.constexpr = 2 * WIDTH if GATED else WIDTH
    tile, first_column = place_of(WIDTH, TILE, GROUP)
    owner = tl.load(owners + tile).to(tl.int64)
    if owner < 0:
        return

    pair = tl.load(pairs + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row = tl.where(pair >= 0, pair, 0) // USED  # padding rows of a tile read any row, and are not stored
    column = first_column + tl.arange(0, TILE)
    depth = tl.arange(0, DEPTH)
    # Columns behind the last are the first: they are there, and not stored either.
    weight_addresses = (
        weights + owner * (OUTPUTS * INPUTS) + (tl.where(column < WIDTH, column, 0) * INPUTS)[None, :] + depth[:, None]
    )
    addresses = x + (row * INPUTS)[:, None] + depth[None, :]
    gate = tl.zeros([ROWS, TILE], tl.float32)
    up = tl.zeros([ROWS, TILE], tl.float32)
    for start in range(0, INPUTS, DEPTH):
        if INPUTS % DEPTH == 0:
            values = tl.load(addresses + start)
            factors = tl.load(weight_addresses + start)
        else:
            values = tl.load(addresses + start, mask=(start + depth < INPUTS)[None, :], other=0.0)
            factors = tl.load(weight_addresses + start, mask=(start + depth < INPUTS)[:, None], other=0.0)
        gate = tl.dot(values, factors, gate, input_precision="ieee")
        if GATED:
            if INPUTS % DEPTH == 0:
                factors = tl.load(weight_addresses + (WIDTH * INPUTS + start))
            else:
                factors = tl.load(
                    weight_addresses + (WIDTH * INPUTS + start), mask=(start + depth < INPUTS)[:, None], other=0.0
                )
            up = tl.dot(values, factors, up, input_precision="ieee")
    bias += owner * OUTPUTS
    store_pairs(gate, up, bias, shares, output, pair[:, None], column[None, :], WIDTH, BIAS, GATED, ACTIVATION)


@launched_directly
@triton.jit
def _sum_used(
    weighted_outputs: tl.tensor,
    chosen: tl.tensor,
    output: tl.tensor,
    WIDTH: tl.constexpr,
    USED: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < WIDTH
    addresses = weighted_outputs + token * (USED * WIDTH) + column
    total = tl.zeros([TILE], tl.float32)
    for turn in tl.static_range(USED):
        is_own = tl.load(chosen + token * USED + turn) < EXPERTS
        total += tl.load(addresses + turn * WIDTH, mask=inside & is_own, other=0.0).to(tl.float32)
    tl.store(output + token * WIDTH + column, total.to(output.dtype.element_ty), mask=inside)
