"""Gates an MLP: multiplies an activation of the first half of one product by its second half.

    silu            g / (1 + exp(-g)) * u
    gelu_tanh       g / 2 (1 + tanh(z / 2)) * u = g / (1 + exp(-z)) * u         z = sqrt(8 / pi) (g + 0.044715 g^3)
    clamped_swiglu  g / (1 + exp(-1.702 g)) * (u + 1)                           g = min(g, 7), u = min(max(u, -7), 7)

(SwiGLU and its like: Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202; the third is
that of gpt-oss: OpenAI's model card, 2025, https://arxiv.org/abs/2508.10925.) A program takes part of one row, 16 bytes
of each half to a thread, so that one row as well as thousands fill the card. fp32 inside.
"""

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.launching import Launch, launched_directly, prepared
from kernels.shape_cache import by_shape
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 512}, warps=2),
    Config({"TILE": 2048}, warps=4),
    Config({"TILE": 2048}, warps=8),
)
"""The first is the default."""

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
GELU_SLOPE, GELU_CUBE = tl.constexpr(1.5957691216057308), tl.constexpr(0.044715)
SWIGLU_LIMIT, SWIGLU_SLOPE = tl.constexpr(7.0), tl.constexpr(1.702)


def gate(gate_up: Tensor, activation: Activation, *, config: Config | None = None) -> Tensor:
    """Multiplies the activation of the first half of each row by its second half.

    Takes `gate_up` `[rows, 2 x width]` fp32, bf16 or fp16, contiguous; returns `[rows, width]` in its format.

    Example: gate_up `[256, 28672]` gives `[256, 14336]`.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.shape == (rows, 2 * width) and gate_up.is_contiguous()
    gated = gate_up.new_empty((rows, width))
    launch, tiles = _launch_of(gate_up.dtype, width, activation, gate_up.device, config)
    launch((rows, tiles), gate_up, gated)
    return gated


@by_shape
def _launch_of(
    dtype: torch.dtype, width: int, activation: Activation, device: torch.device, config: Config | None
) -> tuple[Launch, int]:
    """Returns the launch for rows of this width, and the tiles of a row."""
    shape = f"{str(dtype).removeprefix('torch.')},width={width}"
    options = (config or tuned("gate", shape, device, CANDIDATE_CONFIGS[0])).options()
    return prepared(_gate, WIDTH=width, ACTIVATION=activation, **options), tile_count(width, options["TILE"])


@launched_directly
@triton.jit
def _gate(
    gate_up: tl.tensor, gated: tl.tensor, WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, TILE: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < WIDTH
    addresses = gate_up + row * (2 * WIDTH) + column
    first = tl.load(addresses, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(addresses + WIDTH, mask=inside, other=0.0).to(tl.float32)
    found = activate(first, second, ACTIVATION)
    tl.store(gated + row * WIDTH + column, found.to(gated.dtype.element_ty), mask=inside)


@triton.jit
def activate(first: tl.tensor, second: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Gates fp32 values, of any shape."""
    if ACTIVATION == "silu":
        return first * sigmoid(first) * second
    elif ACTIVATION == "gelu_tanh":
        return first * sigmoid((first + first * first * first * GELU_CUBE) * GELU_SLOPE) * second
    else:
        tl.static_assert(ACTIVATION == "clamped_swiglu")
        # By comparisons, which keep NaN; the device's minimum would return the other number.
        low = tl.where(first > SWIGLU_LIMIT, SWIGLU_LIMIT, first)
        within = tl.where(second > SWIGLU_LIMIT, SWIGLU_LIMIT, tl.where(second < -SWIGLU_LIMIT, -SWIGLU_LIMIT, second))
        return low * sigmoid(low * SWIGLU_SLOPE) * (within + 1.0)


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """Returns 1 / (1 + exp(-x)), by a power that never overflows."""
    power = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, power, 1.0) / (1.0 + power)


def reference(gate_up: Tensor, activation: Activation) -> Tensor:
    """Computes the same with torch operators, in fp32 or wider."""
    first, second = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, -1)
    match activation:
        case "silu":
            found = functional.silu(first) * second
        case "gelu_tanh":
            found = functional.gelu(first, approximate="tanh") * second
        case "clamped_swiglu":
            first, second = first.clamp(max=7.0), second.clamp(-7.0, 7.0)
            found = first * torch.sigmoid(1.702 * first) * (second + 1)
    return found.to(gate_up.dtype)
