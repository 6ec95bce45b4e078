"""Decode attention of a few queries of each sequence, in a row or branching, against exact attention."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention.attention_tiles import PLAIN_SCORES, ScoreParams
from kernels.attention.latent_decode_attention import latent_decode_attention
from kernels.attention.latent_decode_attention import reference as latent_reference
from kernels.attention.multi_query import MultiQuery
from kernels.attention.paged_decode_attention import paged_decode_attention, reference
from kernels.attention.split_kv import SplitPlan
from kernels.tuning import Config
from tests.kernels import latent_problem as latents
from tests.kernels.attention.test_paged_decode_attention import evenly
from tests.kernels.paged_problem import assert_attends, paged_problem

pytestmark = pytest.mark.usefixtures("poisoned_memory")

SMALL = Config({"TILE": 16, "TENSOR_CORES": 1}, warps=4, stages=2)
RAGGED = [(3, 21), (1, 1), (0, 0), (8, 40), (2, 2)]
PARENTS = {3: (-1, -1), 8: (-1, 0, -1, 1, 2, 4, 0), 2: (-1,), 20: tuple(at // 3 - 1 for at in range(19))}
"""Of the guesses of works with so many queries."""


def few_of(works: Sequence[tuple[int, int]], device: torch.device, *, branching: bool) -> MultiQuery:
    """The rows of works (queries, tokens stored with these)."""
    counts = [count for count, _ in works]
    starts = list(accumulate(counts, initial=0))[:-1]
    rows: list[tuple[int, int, int]] = []
    for count, length in works:
        first = length - count
        parents = PARENTS.get(count, ())
        depths, ways = [0], [0]
        for guess, parent in enumerate(parents):
            depths.append(depths[parent + 1] + 1)
            ways.append(ways[parent + 1] | 1 << guess)
        own = range(count - len(parents) - 1)
        rows += [(first + at, first + at, 0) for at in own]
        text = first + len(own)
        rows += [(text + depth, text, way) for depth, way in zip(depths, ways, strict=True)][: count - len(own)]
    numbers = [torch.tensor(each, dtype=torch.int32, device=device) for each in (starts, counts)]
    tree_mask = torch.tensor(rows, dtype=torch.int64, device=device).T.contiguous() if branching else None
    return MultiQuery(numbers[0], numbers[1], max(counts), tree_mask)


def assert_few(
    works: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    branching: bool,
    splits: int = 1,
    scoring: ScoreParams = PLAIN_SCORES,
    heads: int = 4,
    kv_heads: int = 2,
    sinks: Tensor | None = None,
    config: Config | None = SMALL,
) -> None:
    problem = paged_problem(works, dtype, device, heads=heads, kv_heads=kv_heads)
    few = few_of(works, device, branching=branching)
    pieces: SplitPlan | None = evenly(len(works), splits, device)
    rest = problem.block_tables, problem.kv_lengths
    found = paged_decode_attention(
        problem.queries, problem.pool, *rest, multi_query=few, split=pieces, scoring=scoring, sinks=sinks, config=config
    )

    def exact(queries: Tensor, pool: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, **more: Any) -> Tensor:
        return reference(queries, pool, tables, lengths, multi_query=few, **more)

    assert_attends(found, problem, exact, scoring, sinks)


@pytest.mark.parametrize("branching", [False, True], ids=["in a row", "branching"])
@pytest.mark.parametrize(("splits", "window"), [(1, 0), (1, 20), (3, 20)])
def test_ragged_sequences(dtype: torch.dtype, device: torch.device, splits: int, window: int, branching: bool) -> None:
    assert_few(RAGGED, dtype, device, branching=branching, splits=splits, scoring=ScoreParams(window=window))


@pytest.mark.parametrize("branching", [False, True], ids=["in a row", "branching"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "work"), [(2, 2, (20, 34)), (10, 2, (8, 22)), (16, 1, (3, 17))], ids=["2-2", "10-2", "16-1"]
)
def test_heads_of_several_tiles_and_rests(
    dtype: torch.dtype, device: torch.device, heads: int, kv_heads: int, work: tuple[int, int], branching: bool
) -> None:
    works = [(5, 5), work]
    assert_few(works, dtype, device, branching=branching, splits=2, heads=heads, kv_heads=kv_heads)


def test_soft_caps_sinks_and_default_configs(dtype: torch.dtype, device: torch.device) -> None:
    sinks = torch.tensor([0.5, -3.0, 4.0, 0.0, 90.0, -90.0], device=device)
    for scoring, splits in ((ScoreParams(scale=0.9, softcap=2.0), 1), (ScoreParams(window=20, softcap=30.0), 3)):
        assert_few(RAGGED, dtype, device, branching=True, splits=splits, scoring=scoring, heads=6, sinks=sinks)
    assert_few(RAGGED, dtype, device, branching=False, splits=2, config=None)


def test_one_query_each_is_the_same_as_without_rows(dtype: torch.dtype, device: torch.device) -> None:
    works = [(1, 37), (1, 1), (1, 70)]
    problem = paged_problem(works, dtype, device, heads=4, kv_heads=2)
    rest = problem.queries, problem.pool, problem.block_tables, problem.kv_lengths
    few = few_of(works, device, branching=False)
    assert torch.equal(
        paged_decode_attention(*rest, multi_query=few, config=SMALL), paged_decode_attention(*rest, config=SMALL)
    )


def test_rows_that_are_nobodys_stay_as_they_are(dtype: torch.dtype, device: torch.device) -> None:
    """As in a recorded step, where each sequence has room for as many."""
    problem = paged_problem([(3, 37), (1, 5)], dtype, device, heads=4, kv_heads=2)
    spread = problem.queries.new_zeros(8, *problem.queries.shape[1:])
    spread[[0, 1, 2, 4]] = problem.queries
    numbers = [torch.tensor(each, dtype=torch.int32, device=device) for each in ([0, 4], [3, 1])]
    output = torch.full_like(spread, 7.0)
    rest = problem.pool, problem.block_tables, problem.kv_lengths
    for pieces in (None, evenly(2, 2, device)):
        paged_decode_attention(
            spread, *rest, multi_query=MultiQuery(numbers[0], numbers[1], 4), split=pieces, output=output, config=SMALL
        )
        assert (output[[3, 5, 6, 7]] == 7.0).all() and not (output[[0, 1, 2, 4]] == 7.0).all(-1).any()


@pytest.mark.parametrize("branching", [False, True], ids=["in a row", "branching"])
@pytest.mark.parametrize(("splits", "heads", "rows"), [(1, 5, 16), (3, 2, 16), (1, 32, 64)])
def test_latent_vectors(
    dtype: torch.dtype, device: torch.device, splits: int, heads: int, rows: int, branching: bool
) -> None:
    works = [(3, 21), (1, 1), (0, 0), (20, 34), (2, 70)]
    problem = latents.latent_problem(works, dtype, device, heads=heads)
    few = few_of(works, device, branching=branching)
    rest = problem.queries, problem.pool, problem.block_tables, problem.kv_lengths
    found = latent_decode_attention(
        *rest,
        latent=problem.latent,
        scale=problem.scale,
        multi_query=few,
        split=evenly(len(works), splits, device),
        config=Config({"ROWS": rows, "TILE": 16}, warps=4, stages=2),
    )
    exact: Callable[..., Tensor] = partial(
        latent_reference, latent=problem.latent, scale=problem.scale, multi_query=few
    )
    latents.assert_attends(
        found,
        problem,
        lambda queries, pool, tables, starts, lengths, **how: exact(queries, pool, tables, lengths),
    )
