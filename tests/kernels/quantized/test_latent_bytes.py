"""Latent vectors in bytes are stored as the reference does, and attention is that over the numbers that bytes mean."""

from dataclasses import replace

import pytest
import torch

from kernels.attention.latent_decode_attention import latent_decode_attention
from kernels.attention.latent_prefill_attention import latent_prefill_attention
from kernels.attention.split_kv import SplitPlan
from kernels.quantized.kv_bytes import reference_dequantized, reference_packed
from kernels.store_latents import store_latents
from kernels.tuning import Config
from tests.kernels.latent_problem import Latents, assert_attends, latent_problem

pytestmark = pytest.mark.usefixtures("poisoned_memory")

FORMS = pytest.mark.parametrize("form", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
LATENT, ROPE = 40, 24
SMALL = Config({"ROWS": 16, "TILE": 16}, warps=4, stages=2)
KEYS_LARGER = 32.0
"""Rotated keys are so much larger here: with the scales exchanged, or one for both, nothing would be right."""


@FORMS
@FORMATS
def test_what_is_stored_is_the_references_to_the_bit(
    form: torch.dtype, dtype: torch.dtype, device: torch.device
) -> None:
    """Checks bytes of what the same kernel stores as numbers.

    A part with NaN or infinity in it stays visible, and the other part is as it was.
    """
    down = torch.randn(5, 17 + LATENT + ROPE, device=device)
    down[:, -ROPE:] *= KEYS_LARGER
    down[2, 17 + 5], down[3, -3] = float("nan"), float("inf")
    down = down.to(dtype)
    positions = torch.randint(50, (5,), device=device)
    slots = torch.tensor([9, 30, 8, -1, 17], device=device)
    angles = torch.rand(50, ROPE // 2, device=device) * 6.3
    table = torch.cat((angles.cos(), angles.sin()), 1)
    weight, query_weight = torch.randn(LATENT, device=device), torch.randn(17, device=device)
    numbers = torch.randn(6, 1, 8, LATENT + ROPE, device=device).to(dtype)
    pool = reference_packed(numbers, form, LATENT, ROPE)
    ways = [store_latents(down, positions, slots, table, weight, query_weight, to, 1e-6) for to in (numbers, pool)]
    assert torch.equal(*(way.nan_to_num(9) for way in ways)), "queries are the same"
    expected = reference_packed(numbers, form, LATENT, ROPE)
    assert torch.equal(pool.view(torch.uint8), expected.view(torch.uint8))
    meant = reference_dequantized(pool, LATENT, ROPE)
    assert meant[1, 0, 0, :LATENT].isnan().all() and meant[1, 0, 0, LATENT:].isfinite().all()


def quantized(problem: Latents, form: torch.dtype) -> tuple[Latents, Latents]:
    """Returns the problem over bytes, and over the numbers that they mean.

    In the first, keys are larger and their queries smaller, by a power of two: products are the same.
    """
    packed = reference_packed(problem.pool, form, LATENT, ROPE)
    meant = reference_dequantized(packed, LATENT, ROPE).to(problem.queries.dtype)
    block = problem.pool.shape[2]
    scales = packed.view(torch.uint8)[..., -2 * block :].view(torch.bfloat16)  # of keys, which are the last
    scales *= KEYS_LARGER
    queries, alike = problem.queries.clone(), problem.queries.clone()
    queries[..., LATENT:] /= KEYS_LARGER
    alike[..., LATENT:] = queries[..., LATENT:] * KEYS_LARGER  # fp16 has lost some of the smallest
    return replace(problem, queries=queries, pool=packed), replace(problem, queries=alike, pool=meant)


@FORMS
@FORMATS
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_decodes_attend_to_the_numbers(form: torch.dtype, dtype: torch.dtype, cut: bool, device: torch.device) -> None:
    problem = latent_problem([(1, 37), (1, 1), (1, 0), (1, 70)], dtype, device, heads=20, latent=LATENT, rope=ROPE)
    given, meant = quantized(problem, form)
    owners, starts = [0, 0, 1, 2, 3, 3, 3], [0, 2, 3, 4, 7]
    pieces = SplitPlan(*(torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (owners, starts)))
    found = latent_decode_attention(
        given.queries,
        given.pool,
        given.block_tables,
        given.kv_lengths,
        latent=LATENT,
        scale=given.scale,
        split=pieces if cut else None,
        config=SMALL,
    )
    assert_attends(found, meant)


@FORMS
@pytest.mark.parametrize(("dtype", "splits"), [(torch.float32, 3), (torch.float16, 1)], ids=["fp32 split", "fp16"])
def test_prompts_attend_to_the_numbers(
    form: torch.dtype, dtype: torch.dtype, splits: int, device: torch.device
) -> None:
    problem = latent_problem([(5, 37), (20, 20), (1, 70), (3, 0)], dtype, device, latent=LATENT, rope=ROPE)
    given, meant = quantized(problem, form)
    found = latent_prefill_attention(
        given.queries,
        given.pool,
        given.block_tables,
        given.query_start,
        given.kv_lengths,
        latent=LATENT,
        scale=given.scale,
        splits=splits,
        config=SMALL,
    )
    assert_attends(found, meant)
