"""Attention to built keys and values is causal for ragged works, and reads only what is stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import pytest
import torch
from torch import Tensor

from kernels.attention.expanded_attention import CANDIDATE_CONFIGS, ExpandedKV, expanded_attention, reference
from kernels.tuning import Config
from tests.kernels.paged_problem import WALK

pytestmark = pytest.mark.usefixtures("poisoned_memory")

SMALL = Config({"ROWS": 16, "TILE": 16}, warps=4, stages=2)
RAGGED = [(5, 5), (1, 37), (33, 70), (0, 9), (3, 0), (17, 17)]
"""A prompt, one token, a later chunk, no token, a null sequence with three padded queries, and one past a tile."""
BLOCK, LATENT = 8, 40


@dataclass(frozen=True)
class Problem:
    """Arguments of the kernel, all of one device."""

    queries: Tensor
    kv: ExpandedKV
    query_start: Tensor
    scale: float
    longest: int


def problem_of(
    works: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    heads: int = 3,
    nope: int = 32,
    rope: int = 16,
    value: int = 24,
) -> Problem:
    """`works` are pairs (queries, keys with these); all that is in no work is NaN, as are the latent vectors."""
    lengths = [length for _, length in works]
    firsts = torch.tensor([0] + [-(-length // BLOCK) * BLOCK for length in lengths]).cumsum(0)
    widths = ((heads, nope), (heads, value), (LATENT + rope,))
    keys, values, vectors = (torch.full((int(firsts[-1]) + 5, *width), torch.nan, dtype=dtype) for width in widths)
    for first, length in zip(firsts.tolist(), lengths, strict=False):
        for each in (keys, values, vectors[:, LATENT:]):
            each[first : first + length] = torch.randn(length, *each.shape[1:]).to(dtype)
    starts = torch.tensor([0] + [queries for queries, _ in works]).cumsum(0).int()
    queries = torch.randn(int(starts[-1]), heads + 2, nope + rope).to(dtype)
    whole = (keys, values, vectors, firsts[:-1].int(), torch.tensor(lengths, dtype=torch.int32))
    kv = ExpandedKV(*(each.to(device) for each in whole))
    return Problem(queries.to(device)[:, :heads], kv, starts.to(device), (nope + rope) ** -0.5, max(lengths))


def attend(problem: Problem, splits: int | None = 1, config: Config | None = SMALL) -> Tensor:
    return expanded_attention(
        problem.queries,
        problem.kv,
        problem.query_start,
        scale=problem.scale,
        longest=problem.longest,
        splits=splits,
        config=config,
    )


def check(problem: Problem, splits: int | None = 1, config: Config | None = SMALL) -> None:
    """Compares with the exact result, within the bound that `paged_problem.assert_attends` derives."""
    found = attend(problem, splits, config)
    queries = problem.queries.double()
    exact_kv = problem.kv._replace(
        **{name: getattr(problem.kv, name).double() for name in ("keys", "values", "vectors")}
    )
    exact = reference(queries, exact_kv, problem.query_start, scale=problem.scale)
    magnitudes = exact_kv._replace(values=exact_kv.values.abs())
    weighted = reference(queries, magnitudes, problem.query_start, scale=problem.scale)
    own, shared = exact_kv.keys.nan_to_num(0), exact_kv.vectors[:, LATENT:].nan_to_num(0)
    longest_key = (own.square().sum(-1).amax(1) + shared.square().sum(-1)).amax().sqrt()
    score = queries.norm(dim=2).max() * longest_key * problem.scale
    single, kept = 2**-24, torch.finfo(found.dtype).eps / 2
    relative = 2 * kept + single * (2 * WALK * sqrt(queries.shape[2]) * score + 2 * WALK * sqrt(problem.longest) + 8)
    lost = problem.longest * torch.finfo(found.dtype).smallest_normal * kept * exact_kv.values.nan_to_num(0).abs().max()
    assert found.dtype == problem.queries.dtype and found.is_contiguous() and bool(found.isfinite().all())
    excess = (found.double() - exact).abs() - relative * weighted - lost
    assert bool((excess <= 0).all()), f"beyond the bound by {excess.max():.3g}"


@pytest.mark.parametrize("splits", [1, 3])
def test_ragged_works(splits: int, dtype: torch.dtype, device: torch.device) -> None:
    check(problem_of(RAGGED, dtype, device), splits)


@pytest.mark.parametrize(
    ("nope", "rope", "value"), [(16, 16, 16), (24, 8, 40), (48, 16, 64), (64, 32, 16), (128, 64, 128), (10, 6, 14)]
)
def test_keys_wider_or_narrower_than_values(
    nope: int, rope: int, value: int, dtype: torch.dtype, device: torch.device
) -> None:
    check(problem_of([(9, 21), (4, 4)], dtype, device, nope=nope, rope=rope, value=value))


@pytest.mark.parametrize("heads", [1, 5, 17])
def test_heads(heads: int, device: torch.device) -> None:
    check(problem_of([(7, 11), (3, 20)], torch.float32, device, heads=heads))


@pytest.mark.parametrize("config", [None, *CANDIDATE_CONFIGS], ids=str)
def test_every_candidate_computes_the_same(config: Config | None, device: torch.device) -> None:
    check(problem_of([(140, 300), (2, 3)], torch.float32, device, heads=1), None, config)


def test_a_work_of_length_0_gives_zeros(device: torch.device) -> None:
    problem = problem_of([(5, 0)], torch.float32, device)
    assert not attend(problem).any() and not attend(problem, splits=2).any()


def test_a_batch_without_tokens(device: torch.device) -> None:
    assert attend(problem_of([(0, 4)], torch.float32, device)).shape == (0, 3, 24)
