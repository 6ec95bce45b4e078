"""The last numbers of each head are rotated as in float64, and the others stay as they were."""

import pytest
import torch

from kernels.rotate_queries import CANDIDATE_CONFIGS, reference, rotate_queries
from kernels.tuning import Config


def check(
    tokens: int, heads: int, dim: int, rope: int, device: torch.device, dtype: torch.dtype, config: Config | None = None
) -> None:
    """Rounded once to its format, and by 3 units of fp32 before, of twice the largest number of the head."""
    rows = torch.randn(tokens, heads * dim + 5, device=device).to(dtype)
    queries = rows[:, : heads * dim].unflatten(1, (heads, dim))
    before, exact = rows.clone(), queries.double()
    positions = torch.randint(9, (tokens,), device=device)
    angles = torch.rand(9, rope // 2, device=device) * 6.3
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    reference(exact, positions, cos_sin.double())
    rotate_queries(queries, positions, cos_sin, config=config)
    assert rows[:, heads * dim :].equal(before[:, heads * dim :])
    assert queries[..., : dim - rope].equal(before[:, : heads * dim].unflatten(1, (heads, dim))[..., : dim - rope])
    largest = before[:, : heads * dim].unflatten(1, (heads, dim)).double().abs().amax(2, keepdim=True)
    bound = 2 * largest * (torch.finfo(dtype).eps / 2 + 3 * 2**-24)
    assert ((queries.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize(
    ("tokens", "heads", "dim", "rope"), [(1, 1, 2, 2), (3, 40, 24, 8), (2, 5, 33, 6), (0, 2, 8, 4)]
)
def test_rotation(tokens: int, heads: int, dim: int, rope: int, device: torch.device, dtype: torch.dtype) -> None:
    check(tokens, heads, dim, rope, device, dtype)


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    check(3, 33, 24, 16, device, torch.float32, config)
