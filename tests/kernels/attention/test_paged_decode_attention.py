"""Decode attention is softmax(q k^T / sqrt(dim)) v, however sequences are split, and reads only what is stored."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.attention.attention_tiles import PLAIN_SCORES, ScoreParams
from kernels.attention.paged_decode_attention import paged_decode_attention
from kernels.attention.paged_decode_attention import reference as decode_reference
from kernels.attention.prefill_attention import reference
from kernels.attention.split_kv import NO_SEQUENCE, SplitPlan, plan_splits, split_plan_of
from kernels.tuning import Config
from tests.kernels.paged_problem import Paged, assert_attends, paged_problem

pytestmark = pytest.mark.usefixtures("poisoned_memory")

SMALL = Config({"TILE": 16, "TENSOR_CORES": 1}, warps=4, stages=2)
WITHOUT_TENSOR_CORES = Config({"TILE": 16, "TENSOR_CORES": 0}, warps=4, stages=2)
SINKS = [0.5, -3.0, 4.0, 0.0, 90.0, -90.0]
SCORINGS = [
    (ScoreParams(scale=0.9, softcap=2.0), None, 1),
    (PLAIN_SCORES, SINKS, 1),
    (ScoreParams(window=20, softcap=30.0), SINKS, 3),
]
RAGGED = [(1, 37), (1, 1), (1, 0), (1, 70)]


def evenly(works: int, splits: int, device: torch.device) -> SplitPlan | None:
    """Every sequence in as many pieces, whatever its length; behind them programs that nobody needs."""
    if splits == 1:
        return None
    owners = [work for work in range(works) for _ in range(splits)] + [NO_SEQUENCE, NO_SEQUENCE]
    starts = range(0, works * splits + 1, splits)
    return SplitPlan(*(torch.tensor([*each], dtype=torch.int32, device=device) for each in (owners, starts)))


def attend(
    problem: Paged,
    splits: int = 1,
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
    config: Config | None = SMALL,
) -> Tensor:
    pieces = evenly(len(problem.kv_lengths), splits, problem.queries.device)
    return attend_in(pieces, problem, scoring, sinks, config)


def attend_in(
    pieces: SplitPlan | None,
    problem: Paged,
    scoring: ScoreParams,
    sinks: Tensor | None = None,
    config: Config | None = SMALL,
) -> Tensor:
    return paged_decode_attention(
        problem.queries,
        problem.pool,
        problem.block_tables,
        problem.kv_lengths,
        split=pieces,
        scoring=scoring,
        sinks=sinks,
        config=config,
    )


def check(problem: Paged, splits: int = 1, window: int = 0, config: Config | None = SMALL) -> None:
    scoring = ScoreParams(window=window)
    assert_attends(attend(problem, splits, scoring, config=config), problem, reference, scoring)


@pytest.mark.parametrize(("splits", "window"), [(1, 0), (1, 20), (3, 0), (3, 1), (3, 20), (7, 0)])
def test_ragged_sequences(dtype: torch.dtype, device: torch.device, splits: int, window: int) -> None:
    check(paged_problem(RAGGED, dtype, device, heads=4, kv_heads=2), splits, window)


@pytest.mark.parametrize("shared", [1, 4])
def test_multi_query_without_tensor_cores(dtype: torch.dtype, device: torch.device, shared: int) -> None:
    problem = paged_problem([(1, 37), (1, 0)], dtype, device, heads=shared)
    check(problem, splits=2, window=20, config=WITHOUT_TENSOR_CORES)


@pytest.mark.parametrize("config", [SMALL, WITHOUT_TENSOR_CORES], ids=["tensor cores", "without"])
@pytest.mark.parametrize(("scoring", "sinks", "splits"), SCORINGS, ids=str)
def test_scores(
    scoring: ScoreParams, sinks: list[float] | None, splits: int, config: Config, device: torch.device
) -> None:
    problem = paged_problem([(1, 37), (1, 1), (1, 0)], torch.float32, device, heads=6, kv_heads=2)
    more = None if sinks is None else torch.tensor(sinks, device=device)
    assert_attends(attend(problem, splits, scoring, more, config), problem, reference, scoring, more)


@pytest.mark.parametrize("dim", [16, 32, 64, 80, 96, 128, 192, 256])
def test_head_sizes(dtype: torch.dtype, device: torch.device, dim: int) -> None:
    check(paged_problem([(1, 37)], dtype, device, dim=dim), splits=2)


@pytest.mark.parametrize("shared", [1, 3, 7, 16])
def test_heads_that_share_a_kv_head(dtype: torch.dtype, device: torch.device, shared: int) -> None:
    check(paged_problem([(1, 37)], dtype, device, heads=shared), splits=2)


@pytest.mark.parametrize("block", [8, 24, 64])
def test_block_sizes_other_than_the_tile(dtype: torch.dtype, device: torch.device, block: int) -> None:
    check(paged_problem([(1, 50), (1, 70)], dtype, device, block=block))


def test_the_default_config(dtype: torch.dtype, device: torch.device) -> None:
    check(paged_problem([(1, 150), (1, 3)], dtype, device), splits=2, config=None)


def test_sequences_of_length_0_give_zeros(dtype: torch.dtype, device: torch.device) -> None:
    problem = paged_problem([(1, 0), (1, 0)], dtype, device)
    assert not attend(problem, 1).any() and not attend(problem, 2).any()


def test_the_reference_is_prefills(device: torch.device) -> None:
    problem = paged_problem([(1, 9), (1, 30)], torch.float32, device)
    arguments = problem.queries, problem.pool, problem.block_tables
    found = decode_reference(*arguments, problem.kv_lengths)
    assert found.equal(reference(*arguments, problem.query_start, problem.kv_lengths))


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize(
    "lengths",
    [[213], [1, 213, 37, 0, 70], [0, 0, 129, 128], [100, 99, 17, 16, 15, 1]],
    ids=["one", "a long one and short ones", "null rows", "odd lengths"],
)
def test_a_step_that_is_cut_by_its_lengths(
    lengths: list[int], window: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As small a piece as 32 tokens, so that there are many."""
    monkeypatch.setattr("kernels.attention.split_kv.MIN_PART_TOKENS", 32)
    problem = paged_problem([(1, length) for length in lengths], torch.float32, device, heads=4, kv_heads=2)
    for room in (1, 3, 50):
        planned = torch.from_numpy(plan_splits(np.array(lengths), room, window)).to(device)
        scoring = ScoreParams(window=window)
        found = attend_in(split_plan_of(planned, len(lengths), room), problem, scoring)
        assert_attends(found, problem, reference, scoring)


def test_before_there_is_a_plan_nobody_does_anything(device: torch.device) -> None:
    """A record runs once before it has inputs: zeros come out, whatever is in memory."""
    problem = paged_problem([(1, 0), (1, 0)], torch.float32, device)
    nothing = torch.full((2 + 5 + 3,), NO_SEQUENCE, dtype=torch.int32, device=device)
    assert not attend_in(split_plan_of(nothing, 2, 5), problem, PLAIN_SCORES).any()
