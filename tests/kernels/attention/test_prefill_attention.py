"""Prefill attention is softmax(q k^T / sqrt(dim)) v for ragged works, and reads only what is stored."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention.attention_tiles import PLAIN_SCORES, HeadShape, ScoreParams
from kernels.attention.overlapped_tiles import overlaps
from kernels.attention.prefill_attention import prefill_attention, reference
from kernels.device import assumed
from kernels.tuning import Config
from tests.kernels.paged_problem import Paged, assert_attends, paged_problem

pytestmark = pytest.mark.usefixtures("poisoned_memory")

SMALL = Config({"ROWS": 16, "TILE": 16}, warps=4, stages=2)
OVERLAPPED = Config({"ROWS": 128, "TILE": 16}, warps=8, stages=2)
RAGGED = [(5, 5), (1, 37), (33, 70), (0, 9), (3, 0), (17, 17)]
"""A prompt, one token, a later chunk, no token, a null sequence with three padded queries, and one past a tile."""


SINKS = [0.5, -3.0, 4.0, 0.0, 90.0, -90.0]
SCORINGS = [
    (ScoreParams(scale=0.9, softcap=2.0), None, 1),
    (PLAIN_SCORES, SINKS, 1),
    (ScoreParams(window=20, softcap=30.0), SINKS, 3),
]


def attend(
    problem: Paged,
    scoring: ScoreParams = PLAIN_SCORES,
    sinks: Tensor | None = None,
    splits: int | None = None,
    config: Config | None = SMALL,
) -> Tensor:
    return prefill_attention(
        problem.queries,
        problem.pool,
        problem.block_tables,
        problem.query_start,
        problem.kv_lengths,
        longest=int(problem.query_start.diff().max()),
        scoring=scoring,
        sinks=sinks,
        splits=splits,
        config=config,
    )


def check(problem: Paged, window: int = 0, splits: int | None = None, config: Config | None = SMALL) -> None:
    scoring = ScoreParams(window=window)
    assert_attends(attend(problem, scoring, None, splits, config), problem, reference, scoring)


@pytest.mark.parametrize("window", [0, 1, 30])
def test_ragged_works(dtype: torch.dtype, device: torch.device, window: int) -> None:
    check(paged_problem(RAGGED, dtype, device, heads=4, kv_heads=2), window)


@pytest.mark.parametrize(("splits", "window"), [(2, 1000), (3, 30), (7, 0)])
def test_split_keys(dtype: torch.dtype, device: torch.device, splits: int, window: int) -> None:
    check(paged_problem([(3, 3), (9, 70), (1, 0)], dtype, device), window, splits)


@pytest.mark.parametrize(("scoring", "sinks", "splits"), SCORINGS, ids=str)
def test_scores(scoring: ScoreParams, sinks: list[float] | None, splits: int, device: torch.device) -> None:
    problem = paged_problem([(5, 5), (1, 37), (3, 0)], torch.float32, device, heads=6, kv_heads=2)
    more = None if sinks is None else torch.tensor(sinks, device=device)
    assert_attends(attend(problem, scoring, more, splits), problem, reference, scoring, more)


@pytest.mark.parametrize("dim", [16, 32, 64, 80, 96, 128, 192, 256])
def test_head_sizes(dtype: torch.dtype, device: torch.device, dim: int) -> None:
    check(paged_problem([(9, 21)], dtype, device, dim=dim))


@pytest.mark.parametrize("shared", [1, 3, 7, 16])
def test_heads_that_share_a_kv_head(dtype: torch.dtype, device: torch.device, shared: int) -> None:
    check(paged_problem([(7, 11), (3, 20)], dtype, device, heads=shared))


@pytest.mark.parametrize("block", [8, 24, 64])
def test_block_sizes_other_than_the_tile(dtype: torch.dtype, device: torch.device, block: int) -> None:
    check(paged_problem([(20, 50), (4, 70)], dtype, device, block=block))


def test_what_the_device_would_run(dtype: torch.dtype, device: torch.device) -> None:
    """The default tiles, of which one is full, and a window that leaves whole ones out."""
    problem = paged_problem([(40, 150)], dtype, device)
    check(problem, config=None)
    check(problem, window=70, config=None)


@pytest.mark.parametrize(
    ("scoring", "sinks", "splits"),
    [(PLAIN_SCORES, None, 1), (ScoreParams(window=512), None, 1), (ScoreParams(scale=0.5, softcap=2.0), SINKS[:4], 3)],
)
@pytest.mark.parametrize(("dim", "block"), [(128, 16), (80, 24)])
def test_products_beside_a_softmax(
    dim: int, block: int, scoring: ScoreParams, sinks: list[float] | None, splits: int, device: torch.device
) -> None:
    """Hopper's loop takes tiles that all queries see: where there are many, few (too few for it), and no such tiles."""
    problem = paged_problem(
        [(70, 700), (4, 90), (70, 70), (9, 66)], torch.float16, device, heads=4, dim=dim, block=block
    )
    more = None if sinks is None else torch.tensor(sinks, device=device)
    assert_attends(attend(problem, scoring, more, splits, OVERLAPPED), problem, reference, scoring, more)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"capability": (8, 0)}, False),
        ({"capability": (12, 0)}, False),
        ({"dim": 64}, False),
        ({"dim": 192}, False),
        ({"dtype": torch.float32}, False),
        ({"window": 128}, False),
        ({"ROWS": 64}, False),
        ({"kv_format": 1}, False),
    ],
)
def test_where_products_are_beside_a_softmax(change: dict[str, Any], expected: bool) -> None:
    given: dict[str, Any] = (
        dict(dim=128, dtype=torch.bfloat16, window=0, kv_format=0, capability=(9, 0), ROWS=128) | change
    )
    shape = HeadShape(given["dtype"], 8, 4, given["dim"], 16, given["kv_format"])
    with assumed(*given["capability"]):
        found = overlaps(torch.device("meta"), shape, ScoreParams(window=given["window"]), given["ROWS"], 64)
    assert found == expected


def test_more_works_than_are_searched_at_once(device: torch.device) -> None:
    works = [(0, 0)] * 255 + [(3, 5), (2, 9)] + [(0, 0)] * 8 + [(6, 6)]
    check(paged_problem(works, torch.float32, device, heads=1))


def test_a_work_of_length_0_gives_zeros(dtype: torch.dtype, device: torch.device) -> None:
    problem = paged_problem([(5, 0)], dtype, device)
    assert not attend(problem).any() and not attend(problem, splits=2).any()


def test_a_batch_without_tokens(dtype: torch.dtype, device: torch.device) -> None:
    assert attend(paged_problem([(0, 4)], dtype, device)).shape == (0, 2, 32)


def test_blocks_beyond_2_to_the_32_elements(device: torch.device) -> None:
    problem = paged_problem([(3, 20)], torch.float16, device, heads=1, dim=16)
    torch.use_deterministic_algorithms(False)  # eight gigabytes, of which two blocks are touched: nothing may fill them
    far = torch.empty((2**23 + 2, 1, 2, 16, 16), dtype=torch.float16, device=device)
    tables = problem.block_tables.clone()
    far[-2:] = problem.pool[tables[0, :2].long()]
    tables[0, :2] = torch.tensor([2**23, 2**23 + 1])
    found = prefill_attention(
        problem.queries, far, tables, problem.query_start, problem.kv_lengths, longest=3, config=SMALL
    )
    assert_attends(found, problem, reference)
