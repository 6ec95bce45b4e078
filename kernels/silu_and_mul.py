"""Gates an MLP: silu(gate) * up, of the two halves of one product.

    silu(x) = x / (1 + exp(-x))

(SwiGLU: Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202). A program takes part of
one row, 16 bytes of each half to a thread, so that one row as well as thousands fill the card. fp32 inside.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATES = (
    Config({"TILE": 1024}, warps=4),
    Config({"TILE": 512}, warps=2),
    Config({"TILE": 2048}, warps=4),
    Config({"TILE": 2048}, warps=8),
)
"""The first is the default."""


def silu_and_mul(gate_up: Tensor, *, config: Config | None = None) -> Tensor:
    """Multiplies silu of the first half of each row by its second half.

    Takes `gate_up` `[rows, 2 x width]` fp32, bf16 or fp16, contiguous; returns `[rows, width]` in its format.

    Example: gate_up `[256, 28672]` gives `[256, 14336]`.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.shape == (rows, 2 * width) and gate_up.is_contiguous()
    gated = gate_up.new_empty((rows, width))
    shape = f"{str(gate_up.dtype).removeprefix('torch.')},width={width}"
    config = config or tuned("silu_and_mul", shape, gate_up.device, CANDIDATES[0])
    options = config.options()
    _silu_and_mul[(rows, tile_count(width, options["TILE"]))](gate_up, gated, WIDTH=width, **options)
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
    """Computes the same by torch's operators, in fp32 or what is wider."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
