"""Quantizes and dequantizes the bytes of a quantized KV pool, in registers.

A layer is `[blocks, kv_heads, 2, bytes]`, int8 or fp8 (e4m3): for each key or value of a block, `[block, dim]` bytes,
followed by bf16 scales `[block]`. For latent vectors it is `[blocks, 1, bytes]`: `[block, latent + rope]` bytes,
followed by scales `[2, block]`, for the latent parts and for the rotated keys. x' = q scale; scale = bf16(max |x| /
127), or / 448 for fp8, and q is the nearest to x / scale, ties to even. If a value of a part is not finite, the scale
is NaN and all q are 0.

e4m3 is read and written by its bits on every device, since sm_80 has no instructions for it. Shifted left by seven, its
bits are an fp16 with 2^-8 of the value, which the scale compensates (`unit_of`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

KV_FORMATS = {torch.int8: 1, torch.float8_e4m3fn: 2}
"""Quantization format by the dtype of a layer; 0 stands for an unquantized pool."""
INT8_FORMAT = tl.constexpr(1)
SCALE_BYTES = 2
ROUND_TO_INTEGER = tl.constexpr(1.5 * 2.0**23)
"""Adding and subtracting it rounds a value below 2^22 to the nearest integer, ties to even."""
MIN_SCALE = tl.constexpr(2.0**-126)
INFINITE_VALUE = tl.constexpr(float("inf"))


def block_of(shape: torch.Size, *parts: int) -> int:
    """Returns the tokens of a block of a quantized layer `[…, bytes]`, whose vectors have `parts` of these widths."""
    block, rest = divmod(shape[-1], sum(parts) + SCALE_BYTES * len(parts))
    assert not rest, "a layer with vectors of another size"
    return block


def views_of(pool: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a layer as bytes, and as scales, as kernels take it; itself twice if it is not quantized."""
    return (pool.view(torch.uint8), pool.view(torch.bfloat16)) if pool.dtype in KV_FORMATS else (pool, pool)


@triton.jit
def dequantized(stored: tl.tensor, like: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Dequantizes uint8 `stored`, without scale and unit, to the dtype of `like`, which is exact."""
    if FORMAT == INT8_FORMAT:
        return stored.to(tl.int8, bitcast=True).to(tl.float32).to(like.dtype)
    return halves_by_bits(stored, FORMAT).to(like.dtype)


@triton.jit
def halves_by_bits(stored: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Converts uint8 to fp16, without scale and unit."""
    if FORMAT == INT8_FORMAT:
        return stored.to(tl.int8, bitcast=True).to(tl.float16)
    wide = stored.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True)


@triton.jit
def scales_at(addresses: tl.tensor, valid: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Returns fp32 scales times the format's unit; 0 outside of `valid`."""
    UNIT: tl.constexpr = 1.0 if FORMAT == INT8_FORMAT else 256.0
    return tl.load(addresses, mask=valid, other=0.0).to(tl.float32) * UNIT


@triton.jit
def scale_of(highest: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Returns the bf16 scale of vectors whose largest magnitudes are `highest`, fp32; NaN where that is not finite."""
    LARGEST: tl.constexpr = 127.0 if FORMAT == INT8_FORMAT else 448.0
    scale = tl.maximum(tl.div_rn(highest, LARGEST), MIN_SCALE)
    bits = scale.to(tl.uint32, bitcast=True)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    # Not by a global: it would equal itself never, and Triton refuses globals that have changed since it compiled.
    return tl.where(highest < INFINITE_VALUE, rounded, float("nan")).to(tl.bfloat16)


@triton.jit
def quantized(numbers: tl.tensor, scale: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Quantizes fp32 `numbers`, each with its `scale` from `scale_of`, to uint8."""
    scaled = numbers * tl.div_rn(1.0, scale.to(tl.float32))
    scaled = tl.where(tl.abs(scaled) < INFINITE_VALUE, scaled, 0.0)  # NaN is not less
    if FORMAT == INT8_FORMAT:
        return ((scaled + ROUND_TO_INTEGER) - ROUND_TO_INTEGER).to(tl.int32).to(tl.uint8)
    return e4m3(scaled)


@triton.jit
def e4m3(numbers: tl.tensor) -> tl.tensor:
    """Rounds fp32 to the nearest e4m3, ties to even, as uint8; magnitudes must round to at most 448."""
    bits = numbers.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Below 2^-6 values are multiples of 2^-9, the spacing of fp32 at 2^14.
    small = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    large = (magnitude - (120 << 23) + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    found = tl.where(magnitude < 0x3C800000, small, large)
    return (found | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def largest_of(numbers: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    """Returns the largest magnitudes, infinite if a value is not finite (a plain maximum may skip NaN)."""
    sizes = tl.abs(numbers)
    return tl.max(tl.where(sizes < INFINITE_VALUE, sizes, INFINITE_VALUE), AXIS)


def reference_packed(pool: Tensor, kv_format: torch.dtype, *parts: int) -> Tensor:
    """Returns a layer `[…, block, width]` of numbers as one of bytes, `[…, bytes]`, with torch operators.

    `parts` are numbers of a vector that share a scale; by default all do.
    """
    values, scales = [], []
    for numbers in pool.float().split(parts or pool.shape[-1], -1):
        highest = numbers.abs().amax(-1)
        largest = torch.full_like(highest, 127.0 if kv_format == torch.int8 else 448.0)
        scale = (highest / largest).clamp(min=2.0**-126).bfloat16()
        scales.append(torch.where(highest.isfinite(), scale, float("nan")))
        scaled = numbers * (1 / scales[-1].float())[..., None]
        scaled = torch.where(scaled.isfinite(), scaled, 0.0)
        values.append((scaled.round() if kv_format == torch.int8 else scaled).to(kv_format).view(torch.uint8))
    behind = torch.stack(scales, -2).view(torch.uint8)  # [..., parts, 2 block]
    return torch.cat((torch.cat(values, -1).flatten(-2), behind.flatten(-2)), -1).view(kv_format)


def reference_dequantized(layer: Tensor, *parts: int) -> Tensor:
    """Dequantizes a layer of bytes to fp32 `[…, block, width]`, with torch operators."""
    block, width = block_of(layer.shape, *parts), sum(parts)
    scales = layer.view(torch.uint8)[..., block * width :].contiguous().view(torch.bfloat16).float()
    numbers = layer[..., : block * width].float().unflatten(-1, (block, width)).split(parts, -1)
    behind = scales.unflatten(-1, (len(parts), block)).unbind(-2)
    return torch.cat([part * scale[..., None] for part, scale in zip(numbers, behind, strict=True)], -1)
