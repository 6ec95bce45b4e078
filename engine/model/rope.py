"""Rotary position embedding: rotates queries and keys by angles that depend on their positions.

Frequencies: Su et al. 2021 (https://arxiv.org/abs/2104.09864); `linear`: positions divided by a factor; `llama3`:
Meta's Llama 3.1 (low frequencies divided, a smooth band between); `yarn`: Peng et al. 2023
(https://arxiv.org/abs/2309.00071); `longrope`: Ding et al. 2024 (https://arxiv.org/abs/2402.13753), each frequency
divided by a number of its own. The numbers equal transformers' for the same parameters.
"""

import math
from typing import Literal

import torch
from msgspec import Struct, structs
from torch import Tensor

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")


class Rope(Struct, frozen=True, kw_only=True):
    """Parameters of the rotary embedding; unused parameters keep their defaults."""

    dim: int  # leading values of a head that are rotated
    interleaved: bool = False  # pairs are neighbours in the checkpoint; rows are reordered at load
    type: Literal["default", "linear", "llama3", "yarn", "longrope"] = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_len: int = 0  # llama3, yarn, longrope: context length of the original training
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    magnitude: float = 1.0  # cosine and sine are multiplied by it (the attention factor of yarn and longrope)
    truncate: bool = True  # yarn: round the band's ends to whole dimensions
    factors: tuple[float, ...] = ()  # longrope: divisor of each pair's frequency
    long_factors: tuple[float, ...] = ()  # longrope: divisors for longer sequences, until `served` has chosen


def served(rope: Rope, longest: int) -> Rope:
    """Returns the rotation for a model that takes sequences of up to `longest` tokens.

    LongRoPE has other factors beyond the original length. If such sequences are allowed, all sequences use them, as in
    vLLM, since keys that were rotated by different factors cannot be compared.
    """
    long = rope.factors if longest <= rope.original_max_len else rope.long_factors
    return structs.replace(rope, factors=long, long_factors=()) if rope.type == "longrope" else rope


def halves_order(heads: int, head_dim: int, rotated: int, begin: int = 0) -> Tensor:
    """Returns the order of a product's outputs, int64 `[heads * head_dim]`, that puts pairs half a head apart.

    In each head, the `rotated` outputs from `begin` on are neighbouring pairs in the checkpoint: pair (2 i, 2 i + 1)
    moves to (i, i + rotated / 2), in queries and keys alike, so that scores stay the same.
    """
    order = torch.arange(heads * head_dim).view(heads, head_dim)
    part = order[:, begin : begin + rotated]
    part.copy_(part.reshape(heads, -1, 2).transpose(1, 2).flatten(1).clone())
    return order.flatten()


def inverse_frequencies(rope: Rope) -> Tensor:
    """Returns the radians per position of each rotated pair, fp32 `[rope.dim / 2]`."""
    powers = rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim)
    frequencies = 1.0 / powers
    match rope.type:
        case "default":
            return frequencies
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _llama3(rope, frequencies)
        case "yarn":
            return _yarn(rope, powers)
        case "longrope":
            return 1.0 / (torch.tensor(rope.factors) * powers)


def _llama3(rope: Rope, frequencies: Tensor) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    low, high = rope.low_freq_factor, rope.high_freq_factor
    divided = torch.where(wavelengths > rope.original_max_len / low, frequencies / rope.factor, frequencies)
    smooth = (rope.original_max_len / wavelengths - low) / (high - low)
    blended = (1 - smooth) * divided / rope.factor + smooth * divided
    between = ~(wavelengths < rope.original_max_len / high) & ~(wavelengths > rope.original_max_len / low)
    return torch.where(between, blended, divided)


def _yarn(rope: Rope, powers: Tensor) -> Tensor:
    def dimension(rotations: float) -> float:
        """Returns the pair that turns `rotations` times within the original length."""
        return rope.dim * math.log(rope.original_max_len / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # a band of no width would divide by zero
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return (1.0 / (rope.factor * powers)) * (1 - kept) + (1.0 / powers) * kept


def yarn_magnitude(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """Returns yarn's default attention factor (section 3.4 of the paper)."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1.0)


def angle_table(rope: Rope, longest: int, device: torch.device) -> Tensor:
    """Returns fp32 `[longest, rope.dim]`: for each position the cosines of the rope.dim / 2 pairs, then their sines."""
    positions = torch.arange(longest, dtype=torch.float32, device=device)
    radians = positions[:, None] * inverse_frequencies(rope).to(device)
    return torch.cat((radians.cos(), radians.sin()), 1) * rope.magnitude


class Rotary:
    """Rotates the heads of a flat batch; pairs are (i, i + rope.dim / 2), as in Hugging Face checkpoints."""

    def __init__(self, rope: Rope, device: torch.device, dtype: torch.dtype) -> None:
        self._frequencies = inverse_frequencies(rope).to(device)
        self._magnitude = rope.magnitude
        self._dtype = dtype

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosine and signed sine, `[tokens, 1, rope.dim]` each, for int64 `positions` `[tokens]`."""
        radians = positions.to(torch.float32)[:, None, None] * self._frequencies
        cos, sin = radians.cos() * self._magnitude, radians.sin() * self._magnitude
        return torch.cat((cos, cos), -1).to(self._dtype), torch.cat((-sin, sin), -1).to(self._dtype)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates the first values of `heads` `[tokens, heads, head_dim]` in place, as many as the angles have.

    The signs are in the sine, so a roll replaces rotate-half.
    """
    rotated = heads[..., : cos.shape[-1]]
    turned = torch.roll(rotated, rotated.shape[-1] // 2, -1)
    torch.addcmul(rotated * cos, turned, sin, out=rotated)
