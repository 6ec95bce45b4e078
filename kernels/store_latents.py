"""Norms latent vectors, rotates the keys beside them, and stores both; norms queries' latent vectors: in one launch.

    c / sqrt(mean(c^2) + eps) * weight | (k_i cos - k_j sin, k_j cos + k_i sin)                      j = i + rope / 2

for each token's row `[query part | c | k]` of a product (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1).
If queries come from their own latent vector, it is normed as well. fp32 inside, rounded once. A program takes one
token's pair of c and k, or its queries' vector. A quantized pool (quantized/kv_bytes.py) stores the same values as
bytes, with a scale for c and one for k.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.quantized.kv_bytes import KV_FORMATS, block_of, largest_of, quantized, scale_of, views_of
from kernels.sizes import power_of_two
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (Config({}, warps=4), Config({}, warps=2), Config({}, warps=8))
"""The first is the default."""
MAX_WIDTH = 1 << 13
"""Maximum vector width that the registers of a program hold."""


def unsupported(latent: int, query_rank: int) -> str:
    """Returns one sentence that says why such latent vectors cannot be normed; empty if supported."""
    widest = max(latent, query_rank)
    return (
        f"store_latents supports latent vectors of up to {MAX_WIDTH} numbers, not {widest}"
        if widest > MAX_WIDTH
        else ""
    )


def store_latents(
    down: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor,
    weight: Tensor,
    query_weight: Tensor | None,
    pool: Tensor,
    eps: float,
    *,
    config: Config | None = None,
) -> Tensor:
    """Stores each token's latent vector and key. `down` stays as it was.

    Args:
        down: `[tokens, first + latent + rope]`, contiguous: what queries come from, latent vectors, keys.
        positions: `[tokens]` int64, 0 … longest - 1, padding's too.
        slots: `[tokens]` int64, block x block size + offset; negative for padding, of which nothing is stored.
        cos_sin: `[longest, rope]` fp32, the cosines of the rope / 2 pairs, then their sines.
        weight: `[latent]`, of the norm.
        query_weight: `[first]`, of the queries' norm; None: their part is not looked at.
        pool: one layer, `[blocks, 1, block, latent + rope]` in the format of `down`, or `[blocks, 1, bytes]`,
            contiguous; it is written.
        eps: what either norm adds to the mean square.

    Returns what queries come from, `[tokens, first]`: normed, or as it is, a part of `down`.

    Example: 3 tokens of DeepSeek-V3: down `[3, 1536 + 512 + 64]`, cos_sin `[8192, 64]`, weight `[512]`, query_weight
    `[1536]`, pool `[100, 1, 16, 576]`.
    """
    tokens, width = down.shape
    latent, rope = len(weight), cos_sin.shape[1]
    first = width - latent - rope
    kv_format = KV_FORMATS.get(pool.dtype, 0)
    block = block_of(pool.shape, latent, rope) if kv_format else pool.shape[2]
    assert pool.shape[1] == 1 and first >= 0 and rope % 2 == 0
    assert kv_format or (pool.shape[3] == latent + rope and pool.dtype == down.dtype)
    assert pool.is_contiguous() and down.is_contiguous()
    assert positions.shape == slots.shape == (tokens,) and positions.dtype == slots.dtype == torch.int64
    assert cos_sin.dtype == torch.float32 and cos_sin.is_contiguous() and weight.is_contiguous()
    queries = down[:, :first]
    if query_weight is not None:
        assert query_weight.shape == (first,) and query_weight.is_contiguous() and not unsupported(latent, first)
        queries = down.new_empty((tokens, first))
    if tokens:
        shape = f"{str(down.dtype).removeprefix('torch.')},latent={latent},first={first}"
        config = config or tuned("store_latents", shape, down.device, CANDIDATE_CONFIGS[0])
        options = config.options()
        if kv_format:
            options["enable_fp_fusion"] = False  # as in rope_and_store.py
        memory, scales = views_of(pool)
        _store_latents[(tokens, 1 if query_weight is None else 2)](
            down,
            positions,
            slots,
            cos_sin,
            weight,
            weight if query_weight is None else query_weight,
            memory,
            scales,
            queries,
            eps,
            FIRST=first,
            LATENT=latent,
            ROPE=rope,
            FIRST_TILE=power_of_two(max(first, 1)),
            LATENT_TILE=power_of_two(latent),
            PAIRS=power_of_two(rope // 2),
            BLOCK=block,
            FORMAT=kv_format,
            **options,
        )
    return queries


# Both are slices of one copy to the device; without this, another kernel for each alignment would be compiled
# during a request.
@launched_directly
@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _store_latents(
    down: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    cos_sin: tl.tensor,
    weight: tl.tensor,
    query_weight: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    queries: tl.tensor,
    eps: tl.tensor,
    FIRST: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    FIRST_TILE: tl.constexpr,
    LATENT_TILE: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
) -> None:
    WIDTH: tl.constexpr = LATENT + ROPE
    BLOCK_SIZE: tl.constexpr = BLOCK * WIDTH if FORMAT == 0 else BLOCK * (WIDTH + 4)  # bytes or values of a block
    token = tl.program_id(0).to(tl.int64)
    addresses = down + token * (FIRST + WIDTH)
    if tl.program_id(1) == 1:
        number = tl.arange(0, FIRST_TILE)
        normed = _normed(addresses, query_weight, number, eps, FIRST)
        tl.store(queries + token * FIRST + number, normed.to(queries.dtype.element_ty), mask=number < FIRST)
        return
    slot = tl.load(slots + token)
    if slot < 0:
        return
    block, offset = slot // BLOCK * BLOCK_SIZE, slot % BLOCK
    vector = pool + block + offset * WIDTH
    number = tl.arange(0, LATENT_TILE)
    # Numbers are rounded to the format of `down`; bytes are made of these.
    normed = _normed(addresses + FIRST, weight, number, eps, LATENT).to(down.dtype.element_ty)
    pair = tl.arange(0, PAIRS)
    is_pair = pair < ROPE // 2
    angle = cos_sin + tl.load(positions + token) * ROPE + pair
    cos = tl.load(angle, mask=is_pair, other=0.0)
    sin = tl.load(angle + ROPE // 2, mask=is_pair, other=0.0)
    first = tl.load(addresses + FIRST + LATENT + pair, mask=is_pair, other=0.0).to(tl.float32)
    second = tl.load(addresses + FIRST + LATENT + ROPE // 2 + pair, mask=is_pair, other=0.0).to(tl.float32)
    first, second = first * cos - second * sin, second * cos + first * sin
    first, second = first.to(down.dtype.element_ty), second.to(down.dtype.element_ty)
    if FORMAT > 0:
        numbers, numbers_first, numbers_second = normed.to(tl.float32), first.to(tl.float32), second.to(tl.float32)
        scale = scale_of(largest_of(numbers, 0), FORMAT)
        key_scale = scale_of(tl.maximum(largest_of(numbers_first, 0), largest_of(numbers_second, 0)), FORMAT)
        token_scales = scales + (block + BLOCK * WIDTH) // 2 + offset
        tl.store(token_scales, scale)
        tl.store(token_scales + BLOCK, key_scale)
        normed = quantized(numbers, scale, FORMAT)
        first, second = quantized(numbers_first, key_scale, FORMAT), quantized(numbers_second, key_scale, FORMAT)
    tl.store(vector + number, normed, mask=number < LATENT)
    rotated = vector + LATENT + pair
    tl.store(rotated, first, mask=is_pair)
    tl.store(rotated + ROPE // 2, second, mask=is_pair)


@triton.jit
def _normed(
    addresses: tl.tensor, weight: tl.tensor, number: tl.tensor, eps: tl.tensor, WIDTH: tl.constexpr
) -> tl.tensor:
    scale = tl.load(weight + number, mask=number < WIDTH, other=0.0).to(tl.float32)
    wide = tl.load(addresses + number, mask=number < WIDTH, other=0.0).to(tl.float32)
    return wide * tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps) * scale


def reference(
    down: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor,
    weight: Tensor,
    query_weight: Tensor | None,
    pool: Tensor,
    eps: float,
) -> Tensor:
    """Computes the same with torch operators, in fp32 or wider."""
    block, latent, rope = pool.shape[2], len(weight), cos_sin.shape[1]
    wide = down.to(torch.promote_types(down.dtype, torch.float32))
    queries, latents, first, second = wide.split((down.shape[1] - latent - rope, latent, rope // 2, rope // 2), 1)
    latents = latents * (latents.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    cos, sin = cos_sin[positions].chunk(2, -1)
    vectors = torch.cat((latents, first * cos - second * sin, second * cos + first * sin), 1).to(down.dtype)
    valid = slots >= 0
    pool[slots[valid] // block, 0, slots[valid] % block] = vectors[valid]
    if query_weight is not None:
        queries = queries * (queries.square().mean(-1, keepdim=True) + eps).rsqrt() * query_weight
    exact: Tensor = queries
    return exact.to(down.dtype)
