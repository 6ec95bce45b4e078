"""Norms queries and keys, rotates them by their positions (RoPE), and stores keys and values: in one launch.

    (x_i, x_j) -> (x_i cos - x_j sin, x_j cos + x_i sin)        with j = i + dim / 2, as in Hugging Face checkpoints

(Su et al., "RoFormer", 2021, https://arxiv.org/abs/2104.09864). With a norm weight, x is x / sqrt(mean(x^2) + eps) *
weight first, head by head (Qwen3, https://arxiv.org/abs/2505.09388). All of it is fp32 inside, and rounded once.

There is little to compute: memory is what has to be kept busy. A program takes some heads of one token, queries, keys
and values alike. With 16 heads of 128 values and four warps, each thread has 16 bytes of either half of a head. So a
model with 48 heads is three programs to a token: one sequence is as fast as a load, a few additions and a store; with
256 sequences there are six programs to a processor, with a prompt hundreds; and a token's angles, which are fp32, are
read three times only.

Only the places of this step's tokens are written. Behind them, a block that a sequence enters has what it held before,
NaN it may be. The attention kernels select what a query sees, and never multiply the rest by zero: so nothing has to be
cleared.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config, tuned

CANDIDATES = (
    Config({"HEADS": 16}, warps=4),
    Config({"HEADS": 4}, warps=1),
    Config({"HEADS": 8}, warps=2),
    Config({"HEADS": 8}, warps=4),
    Config({"HEADS": 32}, warps=8),
)
"""The first is the default."""

LARGEST = 512
"""Values of a head."""


def unsupported(dim: int) -> str:
    """Says in one sentence why heads of so many values cannot be rotated; empty: they can."""
    if dim % 2 or not 2 <= dim <= LARGEST:
        return f"rope_and_store supports even head sizes up to {LARGEST}, not {dim}"
    return ""


def rope_and_store(
    heads: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor,
    pool: Tensor,
    *,
    query_heads: int,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    config: Config | None = None,
) -> None:
    """Rotates queries in place; stores rotated keys, and values, in the pool. Keys in `heads` stay as they were.

    Args:
        heads: `[tokens, query_heads + 2 x kv_heads, dim]`, contiguous: queries, keys, values.
        positions: `[tokens]` int64, 0 … longest - 1, padding's too.
        slots: `[tokens]` int64, block x block size + offset; negative for padding, of which nothing is stored.
        cos_sin: `[longest, dim]` fp32, the cosines of the dim / 2 pairs, then their sines.
        pool: one layer, `[blocks, kv_heads, 2, block, dim]` in the format of `heads`, contiguous; it is written.
        query_heads: how many of the heads are queries.
        norm_weight: `[query_heads + kv_heads, dim]`, by which queries and keys are normed first; None: they are not.
        eps: what the norm adds to the mean square.

    Example: positions 36 and 4 of two sequences, and a row of padding; 32 query heads on 8 KV heads of 128 values:
    heads `[3, 48, 128]`, positions `[36, 4, 0]`, slots `[7 * 16 + 4, 2 * 16 + 4, -1]`, cos_sin `[8192, 128]`, pool
    `[100, 8, 2, 16, 128]`.
    """
    tokens, count, dim = heads.shape
    _, kv_heads, sides, block, pool_dim = pool.shape
    assert count == query_heads + 2 * kv_heads and sides == 2 and pool_dim == dim and not unsupported(dim)
    assert pool.dtype == heads.dtype and pool.is_contiguous() and heads.is_contiguous()
    assert positions.shape == slots.shape == (tokens,) and positions.dtype == slots.dtype == torch.int64
    assert positions.is_contiguous() and slots.is_contiguous()
    assert cos_sin.shape[1] == dim and cos_sin.dtype == torch.float32 and cos_sin.is_contiguous()
    if norm_weight is not None:
        assert norm_weight.shape == (query_heads + kv_heads, dim) and norm_weight.is_contiguous()
    shape = f"{str(heads.dtype).removeprefix('torch.')},heads={count},dim={dim}"
    config = config or tuned("rope_and_store", shape, heads.device, CANDIDATES[0])
    options = config.options()
    _rope_and_store[(tokens, tile_count(count, options["HEADS"]))](
        heads,
        positions,
        slots,
        cos_sin,
        heads if norm_weight is None else norm_weight,
        pool,
        eps,
        QUERY_HEADS=query_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        PAIRS=power_of_two(dim // 2),
        BLOCK=block,
        NORM=norm_weight is not None,
        **options,
    )


# Both are slices of what a step copies to the device at once: another kernel for each alignment would be compiled while
# a request waits.
@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rope_and_store(
    heads: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    cos_sin: tl.tensor,
    norm_weight: tl.tensor,
    pool: tl.tensor,
    eps: tl.tensor,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    ROTATED: tl.constexpr = QUERY_HEADS + KV_HEADS
    HALF: tl.constexpr = DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    inside = (head < ROTATED + KV_HEADS) & (pair < HALF)
    turned = head < ROTATED

    here = heads + token * ((ROTATED + KV_HEADS) * DIM) + head * DIM + pair
    slot = tl.load(slots + token)
    angle = cos_sin + tl.load(positions + token) * DIM + pair
    cos = tl.load(angle, mask=pair < HALF, other=0.0)
    sin = tl.load(angle + HALF, mask=pair < HALF, other=0.0)
    loaded_first = tl.load(here, mask=inside, other=0.0)
    loaded_second = tl.load(here + HALF, mask=inside, other=0.0)
    first, second = loaded_first.to(tl.float32), loaded_second.to(tl.float32)
    if NORM:
        weight = norm_weight + head * DIM + pair
        mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / DIM
        inverse = tl.rsqrt(mean + eps)[:, None]
        first *= inverse * tl.load(weight, mask=inside & turned, other=0.0).to(tl.float32)
        second *= inverse * tl.load(weight + HALF, mask=inside & turned, other=0.0).to(tl.float32)
    # Values pass as they are.
    stored_first = tl.where(turned, (first * cos - second * sin).to(loaded_first.dtype), loaded_first)
    stored_second = tl.where(turned, (second * cos + first * sin).to(loaded_second.dtype), loaded_second)

    query = inside & (head < QUERY_HEADS)
    tl.store(here, stored_first, mask=query)
    tl.store(here + HALF, stored_second, mask=query)

    side = (head >= ROTATED).to(tl.int32)
    kv_head = head - QUERY_HEADS - side * KV_HEADS
    block, offset = slot // BLOCK, slot % BLOCK  # 64 bits: a pool can have more than 2^31 elements
    place = pool + block * (KV_HEADS * 2 * BLOCK * DIM) + offset * DIM + (kv_head * 2 + side) * (BLOCK * DIM) + pair
    kept = inside & (head >= QUERY_HEADS) & (slot >= 0)
    tl.store(place, stored_first, mask=kept)
    tl.store(place + HALF, stored_second, mask=kept)


def reference(
    heads: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor,
    pool: Tensor,
    *,
    query_heads: int,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Computes the same by torch's operators, in fp32 or what is wider."""
    _, kv_heads, _, block, _ = pool.shape
    rotated = query_heads + kv_heads
    wide = heads[:, :rotated].to(torch.promote_types(heads.dtype, torch.float32))
    if norm_weight is not None:
        wide = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * norm_weight
    cos, sin = cos_sin[positions][:, None].chunk(2, -1)
    first, second = wide.chunk(2, -1)
    wide = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    heads[:, :query_heads] = wide[:, :query_heads].to(heads.dtype)
    kept = slots >= 0
    keys_values = torch.stack((wide[:, query_heads:].to(heads.dtype), heads[:, rotated:]), 2)
    pool[slots[kept] // block, :, :, slots[kept] % block] = keys_values[kept]
