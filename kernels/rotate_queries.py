"""Rotates the last numbers of each head's query by its token's position, in place.

    (x_i, x_j) -> (x_i cos - x_j sin, x_j cos + x_i sin)                                              j = i + rope / 2

(Su et al., "RoFormer", 2021, https://arxiv.org/abs/2104.09864; of a part of a query: DeepSeek-V2,
https://arxiv.org/abs/2405.04434, section 2.1.3.) fp32 inside, rounded once. Only that part is read and written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.sizes import power_of_two, tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (Config({"HEADS": 32}, warps=4), Config({"HEADS": 16}, warps=2), Config({"HEADS": 128}, warps=8))
"""The first is the default."""


def rotate_queries(queries: Tensor, positions: Tensor, cos_sin: Tensor, *, config: Config | None = None) -> None:
    """Rotates queries in place.

    Args:
        queries: `[tokens, heads, dim]`; rows may be strided. The last `rope` numbers of each head are changed.
        positions: `[tokens]` int64, 0 … longest - 1, padding's too.
        cos_sin: `[longest, rope]` fp32, the cosines of the rope / 2 pairs, then their sines.

    Example: queries `[3, 128, 192]`, positions `[3]`, cos_sin `[8192, 64]`.
    """
    tokens, heads, dim = queries.shape
    rope = cos_sin.shape[1]
    assert queries.stride()[1:] == (dim, 1) and 2 <= rope <= dim and rope % 2 == 0
    assert positions.shape == (tokens,) and positions.dtype == torch.int64 and positions.is_contiguous()
    assert cos_sin.dtype == torch.float32 and cos_sin.is_contiguous()
    if not tokens:
        return
    shape = f"{str(queries.dtype).removeprefix('torch.')},heads={heads},rope={rope}"
    config = config or tuned("rotate_queries", shape, queries.device, CANDIDATE_CONFIGS[0])
    options = config.options()
    _rotate_queries[(tokens, tile_count(heads, options["HEADS"]))](
        queries,
        positions,
        cos_sin,
        queries.stride(0),
        ALL=heads,
        DIM=dim,
        ROPE=rope,
        PAIRS=power_of_two(rope // 2),
        **options,
    )


@launched_directly
@triton.jit(do_not_specialize_on_alignment=["positions"])
def _rotate_queries(
    queries: tl.tensor,
    positions: tl.tensor,
    cos_sin: tl.tensor,
    stride: tl.tensor,
    ALL: tl.constexpr,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    PAIRS: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    inside = (head < ALL) & (pair < ROPE // 2)
    angle = cos_sin + tl.load(positions + token) * ROPE + pair
    cos = tl.load(angle, mask=pair < ROPE // 2, other=0.0)
    sin = tl.load(angle + ROPE // 2, mask=pair < ROPE // 2, other=0.0)
    addresses = queries + token * stride + head * DIM + (DIM - ROPE) + pair
    first = tl.load(addresses, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(addresses + ROPE // 2, mask=inside, other=0.0).to(tl.float32)
    tl.store(addresses, (first * cos - second * sin).to(queries.dtype.element_ty), mask=inside)
    tl.store(addresses + ROPE // 2, (second * cos + first * sin).to(queries.dtype.element_ty), mask=inside)


def reference(queries: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Computes the same with torch operators, in fp32 or wider."""
    cos, sin = cos_sin[positions][:, None].chunk(2, -1)
    last = queries[..., -cos_sin.shape[1] :]
    first, second = last.to(torch.promote_types(queries.dtype, torch.float32)).chunk(2, -1)
    last.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))
