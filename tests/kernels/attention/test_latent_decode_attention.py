"""Latent attention of single queries, however sequences are cut, reads only what is stored."""

import pytest
import torch
from torch import Tensor

from kernels.attention.latent_decode_attention import CANDIDATE_CONFIGS, latent_decode_attention, reference
from kernels.attention.latent_prefill_attention import reference as prefill_reference
from kernels.attention.latent_tiles import unsupported
from kernels.attention.split_kv import NO_SEQUENCE, SplitPlan
from kernels.tuning import Config
from tests.kernels.latent_problem import Latents, assert_attends, latent_problem

pytestmark = pytest.mark.usefixtures("poisoned_memory")

SMALL = Config({"ROWS": 16, "TILE": 16}, warps=4, stages=2)
RAGGED = [(1, 37), (1, 1), (1, 0), (1, 70)]


def attend(problem: Latents, splits: int = 1, config: Config | None = SMALL) -> Tensor:
    works, pieces = len(problem.kv_lengths), None
    if splits > 1:
        owners = [work for work in range(works) for _ in range(splits)] + [NO_SEQUENCE, NO_SEQUENCE]
        numbers = (owners, range(0, works * splits + 1, splits))
        pieces = SplitPlan(*(torch.tensor([*n], dtype=torch.int32, device=problem.pool.device) for n in numbers))
    return latent_decode_attention(
        problem.queries,
        problem.pool,
        problem.block_tables,
        problem.kv_lengths,
        latent=problem.latent,
        scale=problem.scale,
        split=pieces,
        config=config,
    )


def check(problem: Latents, splits: int = 1, config: Config | None = SMALL) -> None:
    assert_attends(attend(problem, splits, config), problem)


@pytest.mark.parametrize("splits", [1, 3, 7])
def test_ragged_sequences(dtype: torch.dtype, device: torch.device, splits: int) -> None:
    check(latent_problem(RAGGED, dtype, device), splits)


@pytest.mark.parametrize("heads", [1, 16, 17, 40])
def test_heads_of_several_tiles(dtype: torch.dtype, device: torch.device, heads: int) -> None:
    check(latent_problem([(1, 21), (1, 3)], dtype, device, heads=heads), splits=2)


@pytest.mark.parametrize(("latent", "rope"), [(16, 8), (64, 16), (40, 24), (512, 64)])
def test_sizes_of_vectors(dtype: torch.dtype, device: torch.device, latent: int, rope: int) -> None:
    check(latent_problem([(1, 19)], dtype, device, latent=latent, rope=rope), splits=2)


@pytest.mark.parametrize("block", [8, 24, 64])
def test_block_sizes_other_than_the_tile(dtype: torch.dtype, device: torch.device, block: int) -> None:
    check(latent_problem([(1, 50), (1, 70)], dtype, device, block=block))


@pytest.mark.parametrize("config", [None, *CANDIDATE_CONFIGS], ids=str)
def test_every_candidate_computes_the_same(config: Config | None, device: torch.device) -> None:
    check(latent_problem([(1, 70), (1, 3)], torch.float32, device, heads=20), 2, config)


def test_the_reference_is_prefills(device: torch.device) -> None:
    made = latent_problem([(1, 9), (1, 30)], torch.float32, device)
    arguments = made.queries, made.pool, made.block_tables
    found = reference(*arguments, made.kv_lengths, latent=made.latent, scale=made.scale)
    rest = made.query_start, made.kv_lengths
    assert found.equal(prefill_reference(*arguments, *rest, latent=made.latent, scale=made.scale))


def test_what_is_unsupported_is_named() -> None:
    assert unsupported(torch.bfloat16, 512, 64, 16) == ""
    assert unsupported(torch.float64, 512, 64, 16) == "latent attention supports fp32, fp16 and bf16, not float64"
    assert unsupported(torch.bfloat16, 520, 64, 16).endswith("up to 512 + 128 numbers, not 520 + 64")
    assert unsupported(torch.bfloat16, 512, 64, 12).endswith("multiples of 8, not 12")
