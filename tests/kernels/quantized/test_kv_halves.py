"""Attention to quantized KV is as exact however large its numbers are: powers of two around the products cancel."""

from dataclasses import replace

import pytest
import torch

from kernels.attention.attention_tiles import ScoreParams
from kernels.attention.paged_decode_attention import paged_decode_attention
from kernels.attention.prefill_attention import reference
from kernels.quantized.kv_bytes import reference_packed
from kernels.tuning import Config
from tests.kernels.paged_problem import Paged, assert_attends, paged_problem
from tests.kernels.quantized.test_kv_bytes import FORMS, quantized

pytestmark = pytest.mark.usefixtures("poisoned_memory")

CONFIG = Config({"TILE": 16, "TENSOR_CORES": 1}, warps=4, stages=2)
SCALE = 0.25


def problem_of(device: torch.device) -> Paged:
    return paged_problem([(1, 37), (1, 70)], torch.float16, device, heads=4, kv_heads=2, dim=64)


def decode(problem: Paged, scale: float = SCALE) -> torch.Tensor:
    return paged_decode_attention(
        problem.queries,
        problem.pool,
        problem.block_tables,
        problem.kv_lengths,
        scoring=ScoreParams(scale=scale),
        config=CONFIG,
    )


@FORMS
@pytest.mark.parametrize("power", [-9, 13])
def test_the_size_of_queries_cancels(form: torch.dtype, power: int, device: torch.device) -> None:
    problem = problem_of(device)
    given = replace(problem, pool=reference_packed(problem.pool, form))
    larger = replace(given, queries=(given.queries.float() * 2.0**power).half())
    expected = decode(replace(given, queries=(larger.queries.float() * 2.0**-power).half()))
    assert decode(larger, SCALE * 2.0**-power).equal(expected)


@FORMS
@pytest.mark.parametrize("power", [-10, 12])
def test_shares_of_values_with_other_scales_are_as_exact(form: torch.dtype, power: int, device: torch.device) -> None:
    """Shares times scales would be below fp16's least normal number."""
    problem = problem_of(device)
    numbers = problem.pool.float()
    numbers[:, :, 1] *= 2.0**power
    given = replace(problem, pool=reference_packed(problem.pool.float(), form))
    found = decode(replace(problem, pool=reference_packed(numbers, form)))
    expected = decode(given).float() * 2.0**power
    assert (found.float() - expected).abs().max() <= 2.0**-10 * expected.abs().max()


@FORMS
def test_values_of_zero_keep_their_shares(form: torch.dtype, device: torch.device) -> None:
    """Such a vector has the least scale of all."""
    problem = problem_of(device)
    problem.pool[:, :, 1, ::3] *= 0
    given, meant = quantized(problem, form)
    scoring = ScoreParams(scale=SCALE)
    assert_attends(decode(given), meant, reference, scoring)
