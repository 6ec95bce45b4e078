"""The gate of an MLP: silu(gate) * up, of the two halves of one product.

    silu(x) = x / (1 + exp(-x))

(SwiGLU: Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202). A program takes part of
one row, 16 bytes of each half to a thread, so that one row as well as thousands fill the card. fp32 inside.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tuning import Config, tuned

CANDIDATES = (
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 512}, warps=2),
    Config({"TILE": 2048}, warps=4),
    Config({"TILE": 2048}, warps=8),
)
"""The first is the default."""


def shape_name(dtype: torch.dtype, width: int) -> str:
    """What the gate is tuned by, such as `bfloat16,width=14336`."""
    return f"{str(dtype).removeprefix('torch.')},width={width}"


def silu_and_mul(gate_up: Tensor, *, config: Config | None = None) -> Tensor:
    """silu(first half) * second half of contiguous `gate_up` `[rows, 2 x width]`, as `[rows, width]`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.shape == (rows, 2 * width) and gate_up.is_contiguous()
    gated = gate_up.new_empty((rows, width))
    config = config or tuned("silu_and_mul", shape_name(gate_up.dtype, width), gate_up.device, CANDIDATES[0])
    options = config.options()
    _silu_and_mul[(rows, triton.cdiv(width, options["TILE"]))](gate_up, gated, WIDTH=width, **options)
    return gated


@triton.jit
def _silu_and_mul(gate_up: tl.tensor, gated: tl.tensor, WIDTH: tl.constexpr, TILE: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < WIDTH
    here = gate_up + row * (2 * WIDTH) + column
    gate = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(here + WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(gated + row * WIDTH + column, (gate * tl.sigmoid(gate) * up).to(gated.dtype.element_ty), mask=inside)


def reference(gate_up: Tensor) -> Tensor:
    """The same by torch's operators, in fp32 or what is wider."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
