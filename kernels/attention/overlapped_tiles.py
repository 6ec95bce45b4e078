"""Attends to whole tiles of keys on Hopper, whose tensor cores multiply while the warps compute a softmax.

A product of Hopper's warp groups is asynchronous. In the turn of tile i, after one wait for all earlier products, the
warps issue the scores of tile i + 1 and the sums of the values of tile i - 1, and compute the softmax of tile i:

    tensor cores    s_i+1 = q k_i+1        weighted += p_i-1 v_i-1
    warps           highest_i, p_i = 2^(s_i - highest_i)

FlashAttention-3 (Shah et al., 2024, https://arxiv.org/abs/2407.08608) overlaps products with a softmax, too. Triton
puts a wait only behind a product whose result is needed at once. Here this is the sum of the shares, a small product
with ones, which takes additions and shuffles off the warps as well. It adds the rounded shares that multiply values.
"""

import torch
import triton
import triton.language as tl

from kernels.attention.attention_tiles import TO_BASE_2, HeadShape, ScoreParams
from kernels.device import is_hopper
from kernels.quantized.four_bits import COMPILED

MIN_COLUMNS = tl.constexpr(16)
"""The narrowest factor that `tl.dot` takes."""
OVERLAPPED_DIMS = range(65, 129)
"""Wider heads leave no registers to the scores of a second tile. With narrower heads, two blocks share a processor."""
MIN_OVERLAPPED_ROWS, MAX_OVERLAPPED_TILE = 128, 64
MIN_OVERLAPPED_TILES = tl.constexpr(4)
"""Beginning and end of the overlapped loop take about as long as one turn of it."""
MIN_OVERLAPPED_WINDOW = 512


def overlaps(device: torch.device, shape: HeadShape, scoring: ScoreParams, rows: int, tile: int) -> bool:
    """Returns whether a launch with tiles of these sizes should compile, and take, `attend_overlapped`."""
    return (
        is_hopper(device)
        and shape.dtype != torch.float32
        and not shape.kv_format
        and shape.dim in OVERLAPPED_DIMS
        and rows >= MIN_OVERLAPPED_ROWS
        and tile <= MAX_OVERLAPPED_TILE
        and (not scoring.window or scoring.window >= MIN_OVERLAPPED_WINDOW)
    )


@triton.jit
def attend_overlapped(
    queries: tl.tensor,  # [ROWS, PADDED], zero beyond DIM
    weighted: tl.tensor,  # [ROWS, PADDED] fp32
    highest: tl.tensor,  # [ROWS] fp32
    total: tl.tensor,  # [ROWS] fp32
    first: tl.tensor,  # the first position
    end: tl.tensor,  # one past the last: whole tiles, or none, which all queries see
    pool: tl.tensor,  # address of the KV head's keys in block 0
    block_stride: tl.tensor,
    table: tl.tensor,  # the sequence's blocks
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Adds the positions first … end - 1 to (weighted, highest, total), as `attend_tiles` does."""
    ROWS: tl.constexpr = queries.shape[0]
    PADDED: tl.constexpr = queries.shape[1]
    FACTOR: tl.constexpr = 2.0 * SCALE / SOFTCAP * TO_BASE_2 if SOFTCAP > 0.0 else SCALE
    dims = tl.arange(0, PADDED)[None, :]
    lanes = tl.arange(0, TILE)
    ones = tl.full([TILE, MIN_COLUMNS], 1.0, queries.dtype)
    sums = tl.zeros([ROWS, MIN_COLUMNS], tl.float32) + total[:, None]

    some = (first < end) & (lanes >= 0)
    behind = blocks_at(table, first + lanes, some, BLOCK)
    keys = tile_at(pool, behind, first + lanes, dims, some, block_stride, BLOCK, DIM)
    scores = tl.dot(queries, tl.trans(keys))
    # No shares are behind the first tile: zeros multiply its own values.
    weights = tl.zeros([ROWS, TILE], tl.float32)
    rescale = tl.full([ROWS], 1.0, tl.float32)
    next_blocks = blocks_at(table, tl.minimum(first + TILE, end - TILE) + lanes, some, BLOCK)
    for start in tl.range(first, end, TILE, num_stages=STAGES):
        # Behind the last tile, its own keys are multiplied once more; nothing reads the result.
        next_tile = tl.minimum(start + TILE, end - TILE) + lanes
        last_tile = tl.maximum(start - TILE, first) + lanes
        keys = tile_at(pool, next_blocks, next_tile, dims, None, block_stride, BLOCK, DIM)
        values = tile_at(pool + BLOCK * DIM, behind, last_tile, dims, None, block_stride, BLOCK, DIM)
        # Looked up again: copies that need a value of two turns before would not be asynchronous.
        behind = blocks_at(table, start + lanes, None, BLOCK)
        next_blocks = blocks_at(table, tl.minimum(start + 2 * TILE, end - TILE) + lanes, None, BLOCK)

        rounded = weights.to(queries.dtype)
        sums = tl.dot(rounded, ones, sums * rescale[:, None])  # all products are waited for here
        scaled = multiplied(scores, FACTOR)
        scores = tl.dot(queries, tl.trans(keys))
        weighted = weighted * rescale[:, None]
        weighted = tl.dot(rounded, values, weighted)
        if SOFTCAP > 0.0:
            scaled = SOFTCAP - 2.0 * SOFTCAP / (1.0 + tl.exp2(scaled))
        new_highest = tl.maximum(highest, tl.max(scaled, 1))
        rescale = tl.exp2(highest - new_highest)
        weights = tl.exp2(scaled - new_highest[:, None])
        highest = new_highest
    values = tile_at(pool + BLOCK * DIM, behind, end - TILE + lanes, dims, some, block_stride, BLOCK, DIM)
    rounded = weights.to(queries.dtype)
    weighted = tl.dot(rounded, values, weighted * rescale[:, None])
    sums = tl.dot(rounded, ones, sums * rescale[:, None])
    return weighted, highest, tl.max(sums, 1)


@triton.jit
def blocks_at(table: tl.tensor, positions: tl.tensor, mask: tl.tensor | None, BLOCK: tl.constexpr) -> tl.tensor:
    """Looks up the blocks of positions; block 0 where a mask is false."""
    if mask is None:
        return tl.load(table + positions.to(tl.uint32) // BLOCK)
    else:
        return tl.load(table + positions.to(tl.uint32) // BLOCK, mask=mask, other=0)


@triton.jit
def tile_at(
    pool: tl.tensor,
    blocks: tl.tensor,
    positions: tl.tensor,
    dims: tl.tensor,
    mask: tl.tensor | None,  # of positions
    block_stride: tl.tensor,
    BLOCK: tl.constexpr,
    DIM: tl.constexpr,
) -> tl.tensor:
    """Loads keys or values `[TILE, PADDED]`, zero where the mask is false and beyond DIM."""
    # 64 bits: a pool can have more than 2^31 elements. Unsigned: that is one multiplication.
    rows = blocks.to(tl.uint32).to(tl.uint64) * block_stride.to(tl.uint32) + positions.to(tl.uint32) % BLOCK * DIM
    addresses = pool + rows[:, None] + dims
    if mask is not None:
        return tl.load(addresses, mask=mask[:, None] & (dims < DIM), other=0.0)
    elif dims.shape[1] > DIM:
        return tl.load(addresses, mask=dims < DIM, other=0.0)
    else:
        return tl.load(addresses)


@triton.jit
def multiplied(scores: tl.tensor, FACTOR: tl.constexpr) -> tl.tensor:
    """Multiplies scores before the next product is issued.

    The next scores are written to the registers of these. The compiler would move a plain multiplication behind the
    product, keep both in registers, and copy results that are not there yet: the assembler then waits behind every
    product of the loop (its C7514). So the instruction stands where it is written.
    """
    if COMPILED:
        return tl.inline_asm_elementwise(
            "mul.f32 $0, $1, $2;", "=f,f,f", [scores, FACTOR], dtype=tl.float32, is_pure=False, pack=1
        )
    return scores * FACTOR
