"""Norms queries and keys, rotates them by their positions (RoPE), and stores keys and values: in one launch.

    (x_i, x_j) -> (x_i cos - x_j sin, x_j cos + x_i sin)        with j = i + turned / 2, as in Hugging Face checkpoints

(Su et al., "RoFormer", 2021, https://arxiv.org/abs/2104.09864), of the first `turned` values of a head. With a norm
weight, x is x / sqrt(mean(x^2) + eps) * weight first: head by head (Qwen3, https://arxiv.org/abs/2505.09388), or all
heads of the queries as one vector, and all of the keys as another (OLMo 2, https://arxiv.org/abs/2501.00656).
Everything is fp32 inside, and rounded once.

The kernel is limited by memory, not by arithmetic. A program takes some heads of one token, queries, keys and values
alike. With 16 heads of 128 values and four warps, each thread has 16 bytes of either half of a head. A model with 48
heads has three programs for each token, so a token's fp32 angles are read only three times; 256 sequences give six
programs for each processor, a prompt hundreds. With a norm over all heads, one program takes all of them.

Only the places of this step's tokens are written. After them, a new block still has its old contents, perhaps NaN. The
attention kernels select visible keys instead of multiplying hidden ones by zero, so nothing has to be cleared.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import Launch, launched_directly, prepared
from kernels.quantized.kv_bytes import KV_FORMATS, block_of, largest_of, quantized, scale_of, views_of
from kernels.shape_cache import by_shape
from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"HEADS": 16}, warps=4),
    Config({"HEADS": 4}, warps=1),
    Config({"HEADS": 8}, warps=2),
    Config({"HEADS": 8}, warps=4),
    Config({"HEADS": 32}, warps=8),
)
"""The first is the default."""

MAX_HEAD_DIM = 512
"""Values of a head."""
MAX_NORMED_VALUES = 1 << 14
"""Maximum number of values normed as one vector, held in the registers of a program."""
ALL_WARPS = 16


def unsupported(dim: int, all_heads: int = 0) -> str:
    """Returns one sentence that says why heads of `dim` values cannot be rotated; empty if supported.

    `all_heads` counts queries, keys and values where all are normed as one; 0: each is alone.
    """
    if dim % 2 or not 2 <= dim <= MAX_HEAD_DIM:
        return f"rope_and_store supports even head sizes up to {MAX_HEAD_DIM}, not {dim}"
    if power_of_two(max(all_heads, 1)) * power_of_two(dim) > MAX_NORMED_VALUES:
        return f"rope_and_store norms up to {MAX_NORMED_VALUES} values as one, not {all_heads} heads of {dim} values"
    return ""


def rope_and_store(
    heads: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor | None,
    pool: Tensor,
    *,
    query_heads: int,
    norm_weight: Tensor | None = None,
    as_one: bool = False,
    eps: float = 0.0,
    config: Config | None = None,
) -> None:
    """Rotates queries in place; stores rotated keys, and values, in the pool. Keys in `heads` stay as they were.

    Args:
        heads: `[tokens, query_heads + 2 x kv_heads, dim]`, contiguous: queries, keys, values.
        positions: `[tokens]` int64, 0 … longest - 1, padding's too.
        slots: `[tokens]` int64, block x block size + offset; negative for padding, of which nothing is stored.
        cos_sin: `[longest, turned]` fp32, the cosines of the turned / 2 pairs, then their sines; None: no rotation.
        pool: one layer, `[blocks, kv_heads, 2, block, dim]` in the format of `heads`, or quantized,
            `[blocks, kv_heads, 2, bytes]`, contiguous; it is written.
        query_heads: how many of the heads are queries.
        norm_weight: `[query_heads + kv_heads, dim]`, by which queries and keys are normed first; None: they are not.
        as_one: the norm is that of all queries as one vector, and of all keys as another; else of each head.
        eps: what the norm adds to the mean square.

    Example: positions 36 and 4 of two sequences, and a row of padding; 32 query heads on 8 KV heads of 128 values:
    heads `[3, 48, 128]`, positions `[36, 4, 0]`, slots `[7 * 16 + 4, 2 * 16 + 4, -1]`, cos_sin `[8192, 128]`, pool
    `[100, 8, 2, 16, 128]`.
    """
    tokens, count, dim = heads.shape
    assert pool.is_contiguous() and heads.is_contiguous()
    assert positions.shape == slots.shape == (tokens,) and positions.dtype == slots.dtype == torch.int64
    assert positions.is_contiguous() and slots.is_contiguous()
    turned = 0
    if cos_sin is not None:
        turned = cos_sin.shape[1]
        assert cos_sin.dtype == torch.float32 and cos_sin.is_contiguous()
    if norm_weight is not None:
        assert norm_weight.shape == (count - pool.shape[1], dim) and norm_weight.is_contiguous()
    form = heads.dtype, count, dim, query_heads, pool.dtype, pool.shape
    launch, tiles = _launch_of(*form, turned, norm_weight is not None, as_one, heads.device, config)
    memory, scales = views_of(pool)
    launch(
        (tokens, tiles),
        heads,
        positions,
        slots,
        heads if cos_sin is None else cos_sin,
        heads if norm_weight is None else norm_weight,
        memory,
        scales,
        eps,
    )


@by_shape
def _launch_of(
    dtype: torch.dtype,
    count: int,
    dim: int,
    query_heads: int,
    pool_dtype: torch.dtype,
    pool_shape: torch.Size,
    turned: int,
    norm: bool,
    as_one: bool,
    device: torch.device,
    config: Config | None,
) -> tuple[Launch, int]:
    """Returns the launch for `count` heads of a token, of which it rotates `turned` values, and its programs."""
    kv_heads, sides = pool_shape[1:3]
    kv_format = KV_FORMATS.get(pool_dtype, 0)
    block = block_of(pool_shape, dim) if kv_format else pool_shape[3]
    assert count == query_heads + 2 * kv_heads and sides == 2 and not unsupported(dim)
    assert kv_format or (pool_shape[4] == dim and pool_dtype == dtype)
    assert turned == 0 or (2 <= turned <= dim and turned % 2 == 0)
    shape = f"{str(dtype).removeprefix('torch.')},heads={count},dim={dim}"
    options = (config or tuned("rope_and_store", shape, device, CANDIDATE_CONFIGS[0])).options()
    if as_one:
        assert norm and not unsupported(dim, count)
        options |= {"HEADS": power_of_two(count), "num_warps": ALL_WARPS}
    if kv_format:
        options["enable_fp_fusion"] = False  # a fused multiply-add would round once where the reference rounds twice
    launch = prepared(
        _rope_and_store,
        QUERY_HEADS=query_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        ROTARY_DIM=turned or dim,
        PAIRS=power_of_two((turned or dim) // 2),
        REST_TILE=power_of_two(max(dim - (turned or dim), 1)),
        BLOCK=block,
        FORMAT=kv_format,
        ROTATE=turned > 0,
        NORM=norm,
        AS_ONE=as_one,
        **options,
    )
    return launch, tile_count(count, options["HEADS"])


# Both are slices of one copy to the device; without this, another kernel for each alignment would be compiled
# during a request.
@launched_directly
@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rope_and_store(
    heads: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    cos_sin: tl.tensor,
    norm_weight: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    eps: tl.tensor,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    REST_TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    ROTATE: tl.constexpr,
    NORM: tl.constexpr,
    AS_ONE: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    ROTATED: tl.constexpr = QUERY_HEADS + KV_HEADS
    HALF: tl.constexpr = ROTARY_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    rest_column = ROTARY_DIM + tl.arange(0, REST_TILE)[None, :]
    is_head = head < ROTATED + KV_HEADS
    is_pair = is_head & (pair < HALF)
    is_rest = is_head & (rest_column < DIM)
    is_rotated = head < ROTATED

    addresses = heads + token * ((ROTATED + KV_HEADS) * DIM) + head * DIM
    slot = tl.load(slots + token)
    if ROTATE:
        angle = cos_sin + tl.load(positions + token) * ROTARY_DIM + pair
        cos = tl.load(angle, mask=pair < HALF, other=0.0)
        sin = tl.load(angle + HALF, mask=pair < HALF, other=0.0)
    loaded_first = tl.load(addresses + pair, mask=is_pair, other=0.0)
    loaded_second = tl.load(addresses + HALF + pair, mask=is_pair, other=0.0)
    first, second = loaded_first.to(tl.float32), loaded_second.to(tl.float32)
    rest = loaded_first  # not used, where all values of a head are rotated
    if ROTARY_DIM < DIM:
        rest = tl.load(addresses + rest_column, mask=is_rest, other=0.0)
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if ROTARY_DIM < DIM:
            squares += tl.sum(rest.to(tl.float32) * rest.to(tl.float32), 1)
        squares = squares[:, None]
        if AS_ONE:
            of_queries = tl.sum(tl.where(head < QUERY_HEADS, squares, 0.0)) / (QUERY_HEADS * DIM)
            of_keys = tl.sum(tl.where((head >= QUERY_HEADS) & is_rotated, squares, 0.0)) / (KV_HEADS * DIM)
            mean = tl.where(head < QUERY_HEADS, of_queries, of_keys)
        else:
            mean = squares / DIM
        inverse = tl.rsqrt(mean + eps)
        weight = norm_weight + head * DIM
        first *= inverse * tl.load(weight + pair, mask=is_pair & is_rotated, other=0.0).to(tl.float32)
        second *= inverse * tl.load(weight + HALF + pair, mask=is_pair & is_rotated, other=0.0).to(tl.float32)
        if ROTARY_DIM < DIM:
            normed = rest.to(tl.float32) * inverse
            normed *= tl.load(weight + rest_column, mask=is_rest & is_rotated, other=0.0).to(tl.float32)
            rest = tl.where(is_rotated, normed.to(rest.dtype), rest)
    if ROTATE:
        first, second = first * cos - second * sin, second * cos + first * sin
    # Values pass as they are.
    stored_first = tl.where(is_rotated, first.to(loaded_first.dtype), loaded_first)
    stored_second = tl.where(is_rotated, second.to(loaded_second.dtype), loaded_second)

    if NORM:
        tl.debug_barrier()  # a warp may have summed values that another warp now changes
    if ROTATE or NORM:
        query = head < QUERY_HEADS
        tl.store(addresses + pair, stored_first, mask=is_pair & query)
        tl.store(addresses + HALF + pair, stored_second, mask=is_pair & query)
        if ROTARY_DIM < DIM and NORM:
            tl.store(addresses + rest_column, rest, mask=is_rest & query)

    is_value = (head >= ROTATED).to(tl.int32)
    kv_head = head - QUERY_HEADS - is_value * KV_HEADS
    block, offset = slot // BLOCK, slot % BLOCK  # 64 bits: a pool can have more than 2^31 elements
    VECTOR_SIZE: tl.constexpr = BLOCK * DIM if FORMAT == 0 else BLOCK * (DIM + 2)  # a key, or value, of a block
    vector = block * (KV_HEADS * 2 * VECTOR_SIZE) + (kv_head * 2 + is_value) * VECTOR_SIZE
    target = pool + vector + offset * DIM
    is_stored = (head >= QUERY_HEADS) & (slot >= 0)
    if FORMAT > 0:
        # Values equal the contents of an unquantized pool: rounded to the format of the heads.
        numbers_first, numbers_second = stored_first.to(tl.float32), stored_second.to(tl.float32)
        highest = tl.maximum(largest_of(numbers_first, 1), largest_of(numbers_second, 1))
        if ROTARY_DIM < DIM:
            highest = tl.maximum(highest, largest_of(rest.to(tl.float32), 1))
        scale = scale_of(highest, FORMAT)[:, None]
        tl.store(scales + (vector + BLOCK * DIM) // 2 + offset, scale, mask=is_stored & is_head)
        stored_first, stored_second = quantized(numbers_first, scale, FORMAT), quantized(numbers_second, scale, FORMAT)
        if ROTARY_DIM < DIM:
            rest = quantized(rest.to(tl.float32), scale, FORMAT)
    tl.store(target + pair, stored_first, mask=is_pair & is_stored)
    tl.store(target + HALF + pair, stored_second, mask=is_pair & is_stored)
    if ROTARY_DIM < DIM:
        tl.store(target + rest_column, rest, mask=is_rest & is_stored)


def reference(
    heads: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor | None,
    pool: Tensor,
    *,
    query_heads: int,
    norm_weight: Tensor | None = None,
    as_one: bool = False,
    eps: float = 0.0,
) -> None:
    """Computes the same with torch operators, in fp32 or wider."""
    _, kv_heads, _, block, _ = pool.shape
    rotated = query_heads + kv_heads
    wide = heads[:, :rotated].to(torch.promote_types(heads.dtype, torch.float32))
    if norm_weight is not None:
        over = (1, 2) if as_one else 2
        sides = wide.split((query_heads, kv_heads), 1)
        means = [(side.square().mean(over, keepdim=True) + eps).rsqrt() for side in sides]
        wide = torch.cat([side * mean for side, mean in zip(sides, means, strict=True)], 1) * norm_weight
    if cos_sin is not None:
        cos, sin = cos_sin[positions][:, None].chunk(2, -1)
        first, second, rest = wide.split((cos.shape[-1], cos.shape[-1], wide.shape[-1] - 2 * cos.shape[-1]), -1)
        wide = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)
    heads[:, :query_heads] = wide[:, :query_heads].to(heads.dtype)
    valid = slots >= 0
    keys_values = torch.stack((wide[:, query_heads:].to(heads.dtype), heads[:, rotated:]), 2)
    pool[slots[valid] // block, :, :, slots[valid] % block] = keys_values[valid]
