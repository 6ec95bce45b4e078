"""Quantized KV in kernels is stored as the reference does, and attention is that over the numbers that bytes mean."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention.attention_tiles import PLAIN_SCORES, ScoreParams
from kernels.attention.paged_decode_attention import paged_decode_attention
from kernels.attention.prefill_attention import prefill_attention, reference
from kernels.quantized.kv_bytes import reference_dequantized, reference_packed
from kernels.rope_and_store import rope_and_store
from kernels.tuning import Config
from tests.kernels.paged_problem import Paged, assert_attends, paged_problem

pytestmark = pytest.mark.usefixtures("poisoned_memory")

FORMS = pytest.mark.parametrize("form", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
DECODE = Config({"TILE": 16, "TENSOR_CORES": 1}, warps=4, stages=2)
WITHOUT_TENSOR_CORES = Config({"TILE": 16, "TENSOR_CORES": 0}, warps=4, stages=2)
PREFILL = Config({"ROWS": 16, "TILE": 16}, warps=4, stages=2)


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("turned", [32, 24, 0])
def test_what_is_stored_is_the_references_to_the_bit(
    form: torch.dtype, dtype: torch.dtype, turned: int, device: torch.device
) -> None:
    """Checks bytes of what the same kernel stores as numbers.

    A vector with NaN or infinity in it stays visible as a whole.
    """
    heads = torch.randn(5, 4 + 2 * 2, 32, device=device).to(dtype)
    heads[2, 5, 3], heads[3, 6, 1] = float("nan"), float("inf")
    positions = torch.randint(50, (5,), device=device)
    slots = torch.tensor([9, 30, 8, -1, 17], device=device)
    angles = torch.rand(50, max(turned, 2) // 2, device=device)
    table = torch.cat((angles.cos(), angles.sin()), 1) if turned else None
    numbers = torch.randn(6, 2, 2, 8, 32, device=device).to(dtype)
    pool, given = reference_packed(numbers, form), heads.clone()
    rope_and_store(heads, positions, slots, table, numbers, query_heads=4)
    rope_and_store(given, positions, slots, table, pool, query_heads=4)
    assert torch.equal(given.view(torch.uint8), heads.view(torch.uint8)), "queries are the same"
    assert torch.equal(pool.view(torch.uint8), reference_packed(numbers, form).view(torch.uint8))


def quantized(problem: Paged, form: torch.dtype) -> tuple[Paged, Paged]:
    """Returns the problem over bytes, and over the numbers that they mean."""
    packed = reference_packed(problem.pool, form)
    meant = reference_dequantized(packed, problem.queries.shape[2])
    return replace(problem, pool=packed), replace(problem, pool=meant.to(problem.queries.dtype))


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("config", [DECODE, WITHOUT_TENSOR_CORES], ids=["tensor cores", "without"])
@pytest.mark.parametrize(
    "scoring", [PLAIN_SCORES, ScoreParams(window=20, softcap=30.0)], ids=["plain", "window and cap"]
)
def test_decodes_attend_to_the_numbers(
    form: torch.dtype, dtype: torch.dtype, config: Config, scoring: ScoreParams, device: torch.device
) -> None:
    given, meant = quantized(
        paged_problem([(1, 37), (1, 1), (1, 70)], dtype, device, heads=6, kv_heads=2, dim=48, block=8), form
    )
    found = paged_decode_attention(
        given.queries, given.pool, given.block_tables, given.kv_lengths, scoring=scoring, config=config
    )
    assert_attends(found, meant, _decode_reference, scoring)


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize(
    "scoring", [PLAIN_SCORES, ScoreParams(window=20, softcap=30.0)], ids=["plain", "window and cap"]
)
def test_prompts_attend_to_the_numbers(
    form: torch.dtype, dtype: torch.dtype, scoring: ScoreParams, device: torch.device
) -> None:
    given, meant = quantized(
        paged_problem([(5, 37), (20, 20), (1, 70)], dtype, device, heads=6, kv_heads=2, dim=48, block=8), form
    )
    found = prefill_attention(
        given.queries,
        given.pool,
        given.block_tables,
        given.query_start,
        given.kv_lengths,
        longest=20,
        scoring=scoring,
        config=PREFILL,
    )
    assert_attends(found, meant, reference, scoring)


def _decode_reference(*given: Tensor, **named: object) -> Tensor:
    return reference(*given, **named)  # type: ignore[arg-type]
