"""A ragged batch over a paged pool in which all that is not its own is NaN, and how far from exact a kernel may end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from kernels.attention.attention_tiles import PLAIN_SCORES, ScoreParams

WALK = 4.0
"""n rounding errors add up to WALK * sqrt(n) at most, but for a chance of 2 exp(-WALK^2 / 2) (Higham and Mary, "A new
approach to probabilistic rounding error analysis", 2019, theorem 2.4); no sum of these tests was seen near it."""


@dataclass(frozen=True)
class Paged:
    """Arguments of an attention kernel, all of one device."""

    queries: Tensor  # [tokens, heads, dim], a slice of wider rows
    pool: Tensor  # [blocks, kv_heads, 2, block, dim]
    block_tables: Tensor
    query_start: Tensor
    kv_lengths: Tensor


def paged_problem(
    works: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    heads: int = 2,
    kv_heads: int = 1,
    dim: int = 32,
    block: int = 16,
) -> Paged:
    """`works` are pairs (queries, tokens stored with these); numbers are drawn afresh each time."""
    widths = [-(-length // block) for _, length in works]
    order = 1 + torch.randperm(sum(widths) + 3)
    poisoned = int(order[-1])
    tables = torch.full((len(works), max(widths) + 2), poisoned, dtype=torch.int32)
    pool = torch.full((len(order) + 1, kv_heads, 2, block, dim), float("nan"), dtype=dtype)
    taken = 0
    for work, (width, (_, length)) in enumerate(zip(widths, works, strict=True)):
        tables[work, :width] = order[taken : taken + width].int()
        for place in range(length):
            pool[tables[work, place // block], :, :, place % block] = torch.randn(kv_heads, 2, dim).to(dtype)
        taken += width
    starts = torch.tensor([0] + [queries for queries, _ in works]).cumsum(0).int()
    fused = torch.randn(int(starts[-1]), heads + 2 * kv_heads, dim).to(dtype)
    lengths = torch.tensor([length for _, length in works], dtype=torch.int32)
    return Paged(*(part.to(device) for part in (fused[:, :heads], pool, tables, starts, lengths)))


def assert_attends(
    found: Tensor,
    problem: Paged,
    reference: Callable[..., Tensor],
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
) -> None:
    """Compares with the exact result, element by element.

    Weights p_j = e^s_j / sum are rounded to the values' format (u each), and so is the result: 2 u sum_j p_j |v_j|. The
    reference gives that sum, for |v|. A score's error e makes p_j wrong by e p_j, above and below the fraction. Sums of
    n fp32 products are wrong by WALK sqrt(n) u32 of the sum of their magnitudes: that of a score is |q| |k| / sqrt(dim)
    at most, the others' is 1. Scale, powers, division and rescaling are 8 u32 more. A soft cap makes a score of it that
    is less wrong, and adds 12 u32 of the cap: of the power 4, the sum 1, the division 4, product and difference 2, and
    what is of second order. Below its least normal number a format loses up to that number times u; each weight may,
    which is at most 1.
    """
    dim = problem.queries.shape[2]
    queries, pool = problem.queries.double(), problem.pool.double()
    magnitudes = pool.clone()
    magnitudes[:, :, 1] = magnitudes[:, :, 1].abs()
    rest = problem.block_tables, problem.query_start, problem.kv_lengths
    exact = reference(queries, pool, *rest, scoring=scoring, sinks=sinks)
    weighted = reference(queries, magnitudes, *rest, scoring=scoring, sinks=sinks)
    longest = max(problem.kv_lengths.tolist())
    stored = pool.nan_to_num(0)
    score = queries.norm(dim=2).max() * stored[:, :, 0].norm(dim=-1).max() * (scoring.scale or dim**-0.5)
    single, kept = 2**-24, torch.finfo(problem.pool.dtype).eps / 2
    wrong = 2 * (WALK * sqrt(dim) * score + 12 * scoring.softcap)
    relative = 2 * kept + single * (wrong + 2 * WALK * sqrt(longest) + 8)
    lost = longest * torch.finfo(problem.pool.dtype).smallest_normal * kept * stored[:, :, 1].abs().max()
    assert found.dtype == problem.pool.dtype and found.is_contiguous()
    assert bool(found.isfinite().all())
    excess = (found.double() - exact).abs() - relative * weighted - lost
    assert bool((excess <= 0).all()), f"beyond the bound by {excess.max():.3g}"
