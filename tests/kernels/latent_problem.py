"""A ragged batch over paged latent vectors in which all that is not its own is NaN, and how far a kernel may be off."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from kernels.attention.latent_prefill_attention import reference
from tests.kernels.paged_problem import WALK


@dataclass(frozen=True)
class Latents:
    """Arguments of a kernel of latent attention, all of one device."""

    queries: Tensor  # [tokens, heads, latent + rope]
    pool: Tensor  # [blocks, 1, block, latent + rope]
    block_tables: Tensor
    query_start: Tensor
    kv_lengths: Tensor
    latent: int
    scale: float


def latent_problem(
    works: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    heads: int = 5,
    latent: int = 32,
    rope: int = 16,
    block: int = 8,
) -> Latents:
    """`works` are pairs (queries, tokens stored with these); numbers are drawn afresh each time."""
    widths = [-(-length // block) for _, length in works]
    order = 1 + torch.randperm(sum(widths) + 3)
    tables = torch.full((len(works), max(widths) + 2), int(order[-1]), dtype=torch.int32)
    pool = torch.full((len(order) + 1, 1, block, latent + rope), float("nan"), dtype=dtype)
    taken = 0
    for work, (width, (_, length)) in enumerate(zip(widths, works, strict=True)):
        tables[work, :width] = order[taken : taken + width].int()
        for place in range(length):
            pool[tables[work, place // block], 0, place % block] = torch.randn(latent + rope).to(dtype)
        taken += width
    starts = torch.tensor([0] + [queries for queries, _ in works]).cumsum(0).int()
    queries = torch.randn(int(starts[-1]), heads, latent + rope).to(dtype)
    lengths = torch.tensor([length for _, length in works], dtype=torch.int32)
    placed = (queries.to(device), pool.to(device), tables.to(device), starts.to(device), lengths.to(device))
    return Latents(*placed, latent, (latent + rope) ** -0.5)


def assert_attends(found: Tensor, problem: Latents, definition: Callable[..., Tensor] = reference) -> None:
    """Compares with the exact result, within the bound that `paged_problem.assert_attends` derives."""
    width = problem.pool.shape[3]
    pool = problem.pool.double()
    rest = problem.block_tables, problem.query_start, problem.kv_lengths
    how = {"latent": problem.latent, "scale": problem.scale}
    exact = definition(problem.queries.double(), pool, *rest, **how)
    stored = pool.nan_to_num(0)
    largest = stored[..., : problem.latent].abs().max()
    longest = max(problem.kv_lengths.tolist())
    score = problem.queries.double().norm(dim=2).max() * stored.norm(dim=-1).max() * problem.scale
    single, kept = 2**-24, torch.finfo(problem.pool.dtype).eps / 2
    relative = 2 * kept + single * (2 * WALK * sqrt(width) * score + 2 * WALK * sqrt(longest) + 8)
    lost = longest * torch.finfo(problem.pool.dtype).smallest_normal * kept * largest
    assert found.dtype == problem.pool.dtype and found.is_contiguous() and found.isfinite().all()
    # Weights sum up to 1, so the sum of the values' magnitudes is at most the largest.
    excess = (found.double() - exact).abs() - relative * largest - lost
    assert (excess <= 0).all(), f"beyond the bound by {excess.max():.3g}"
