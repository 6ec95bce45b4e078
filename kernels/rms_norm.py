"""Norms rows by their root mean square, optionally after adding a layer's change to the residual stream.

    hidden = hidden + change
    normed = hidden / sqrt(mean(hidden^2) + eps) * weight

(Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, https://arxiv.org/abs/1910.07467). A program takes
one row and keeps it in registers, so that each value is read once. The sum is rounded to the tensors' format before its
norm is taken, as with two separate operators; everything else is fp32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import Launch, launched_directly, prepared
from kernels.shape_cache import by_shape
from kernels.sizes import power_of_two
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (Config({}, warps=8), Config({}, warps=4), Config({}, warps=16))
"""The first is the default."""

MAX_WIDTH = 1 << 14
"""Maximum row width: the registers of eight warps hold it beside the weights."""


def unsupported(width: int) -> str:
    """Returns one sentence that says why rows of this width cannot be normed; empty if supported."""
    return f"rms_norm supports rows of up to {MAX_WIDTH} values, not {width}" if width > MAX_WIDTH else ""


def rms_norm(hidden: Tensor, weight: Tensor, eps: float, *, config: Config | None = None) -> Tensor:
    """Norms each row of `hidden`.

    Args:
        hidden: `[rows, width]` fp32, bf16 or fp16, contiguous.
        weight: `[width]`, contiguous.
        eps: added to the mean square.

    Returns `[rows, width]` in the format of `hidden`.

    Example: hidden `[256, 4096]`, weight `[4096]`, eps 1e-5.
    """
    return _normed(hidden, None, weight, eps, config)


def add_rms_norm(hidden: Tensor, change: Tensor, weight: Tensor, eps: float, *, config: Config | None = None) -> Tensor:
    """Adds `change` to `hidden` in place, both `[rows, width]` as `rms_norm` takes it, and returns the norm of the sum.

    Example: hidden and change `[256, 4096]`, weight `[4096]`, eps 1e-5.
    """
    assert change.shape == hidden.shape and change.dtype == hidden.dtype and change.is_contiguous()
    return _normed(hidden, change, weight, eps, config)


def _normed(hidden: Tensor, change: Tensor | None, weight: Tensor, eps: float, config: Config | None) -> Tensor:
    rows, width = hidden.shape
    assert hidden.is_contiguous() and weight.shape == (width,) and weight.is_contiguous()
    normed = torch.empty_like(hidden)
    launch = _launch_of(hidden.dtype, width, change is not None, hidden.device, config)
    launch((rows,), hidden, hidden if change is None else change, weight, normed, eps)
    return normed


@by_shape
def _launch_of(dtype: torch.dtype, width: int, add: bool, device: torch.device, config: Config | None) -> Launch:
    assert not unsupported(width)
    shape = f"{str(dtype).removeprefix('torch.')},width={width}"
    config = config or tuned("rms_norm", shape, device, CANDIDATE_CONFIGS[0])
    return prepared(_rms_norm, WIDTH=width, TILE=power_of_two(width), ADD=add, **config.options())


@launched_directly
@triton.jit
def _rms_norm(
    hidden: tl.tensor,
    change: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    result = norm_row(hidden, change, weight, row, eps, WIDTH, TILE, ADD)
    tl.store(normed + row * WIDTH + column, result, mask=column < WIDTH)


@triton.jit
def norm_row(
    hidden: tl.tensor,
    change: tl.tensor,
    weight: tl.tensor,
    row: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    ADD: tl.constexpr,
) -> tl.tensor:
    """Norms a row, whose number is int64: returns `[TILE]` in its format, 0 behind its end."""
    column = tl.arange(0, TILE)
    valid = column < WIDTH
    addresses = row * WIDTH + column
    scale = tl.load(weight + column, mask=valid, other=0.0).to(tl.float32)
    x = tl.load(hidden + addresses, mask=valid, other=0.0)
    if ADD:
        added = x.to(tl.float32) + tl.load(change + addresses, mask=valid, other=0.0).to(tl.float32)
        x = added.to(x.dtype)
    wide = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    if ADD:
        # Several warps read a row that has fewer values than the block has threads: all of them before it changes.
        tl.debug_barrier()
        tl.store(hidden + addresses, x, mask=valid)
    return (wide * inverse * scale).to(x.dtype)


def reference(hidden: Tensor, weight: Tensor, eps: float, change: Tensor | None = None) -> Tensor:
    """Computes the same with torch operators, in fp32 or wider; adds a `change` in place first."""
    if change is not None:
        hidden += change
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(hidden.dtype)
