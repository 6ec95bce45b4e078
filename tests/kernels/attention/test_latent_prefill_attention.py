"""Latent attention of ragged works is causal, and reads only what is stored."""

import pytest
import torch
from torch import Tensor

from kernels.attention.latent_prefill_attention import CANDIDATE_CONFIGS, latent_prefill_attention
from kernels.tuning import Config
from tests.kernels.latent_problem import Latents, assert_attends, latent_problem

pytestmark = pytest.mark.usefixtures("poisoned_memory")

SMALL = Config({"ROWS": 16, "TILE": 16}, warps=4, stages=2)
RAGGED = [(5, 5), (1, 37), (13, 50), (0, 9), (3, 0), (7, 7)]
"""A prompt, one token, a later chunk, no token, a null sequence with three padded queries, and a second prompt."""


def attend(problem: Latents, splits: int | None = None, config: Config | None = SMALL) -> Tensor:
    return latent_prefill_attention(
        problem.queries,
        problem.pool,
        problem.block_tables,
        problem.query_start,
        problem.kv_lengths,
        latent=problem.latent,
        scale=problem.scale,
        splits=splits,
        config=config,
    )


@pytest.mark.parametrize("splits", [1, 3])
def test_ragged_works(splits: int, dtype: torch.dtype, device: torch.device) -> None:
    problem = latent_problem(RAGGED, dtype, device)
    assert_attends(attend(problem, splits), problem)


@pytest.mark.parametrize("heads", [1, 3, 16, 33])
def test_tiles_cut_anywhere_between_queries_and_heads(heads: int, dtype: torch.dtype, device: torch.device) -> None:
    problem = latent_problem([(5, 9), (3, 20)], dtype, device, heads=heads)
    assert_attends(attend(problem), problem)


@pytest.mark.parametrize(("latent", "rope"), [(16, 8), (64, 16), (40, 24), (512, 64)])
def test_sizes_of_vectors(dtype: torch.dtype, device: torch.device, latent: int, rope: int) -> None:
    problem = latent_problem([(3, 19)], dtype, device, latent=latent, rope=rope)
    assert_attends(attend(problem), problem)


@pytest.mark.parametrize("config", [None, *CANDIDATE_CONFIGS], ids=str)
def test_every_candidate_computes_the_same(config: Config | None, device: torch.device) -> None:
    problem = latent_problem([(9, 70), (2, 3)], torch.float32, device, heads=6)
    assert_attends(attend(problem, None, config), problem)


def test_a_work_of_length_0_gives_zeros(device: torch.device) -> None:
    problem = latent_problem([(5, 0)], torch.float32, device)
    assert not attend(problem).any() and not attend(problem, splits=2).any()


def test_a_batch_without_tokens(device: torch.device) -> None:
    assert attend(latent_problem([(0, 4)], torch.float32, device)).shape == (0, 5, 32)
