"""The norm against float64, and the sum that it is the norm of."""

import pytest
import torch
from torch import Tensor

from kernels.rms_norm import CANDIDATE_CONFIGS, MAX_WIDTH, add_rms_norm, reference, rms_norm, unsupported
from kernels.tuning import Config
from tests.kernels.poison import poisoned

EPS = 1e-5
SHAPES = [(1, 16), (3, 97), (5, 130), (2, 1024)]


def tensor(*shape: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def assert_normed(found: Tensor, hidden: Tensor, weight: Tensor) -> None:
    """Rounded once to its format. Before, in fp32 with unit u: a sum of `width` squares in any order is wrong by at
    most (width + 1) u, of which the root leaves half; rsqrt by 2^-22 on a GPU, 4 u; products, quotient and eps by 5 u,
    and what is of second order by less than one more."""
    width = hidden.shape[1]
    exact = reference(hidden.double(), weight.double(), EPS)
    unit = torch.finfo(torch.float32).eps / 2
    bound = torch.finfo(found.dtype).eps / 2 + (width / 2 + 10.5) * unit
    least = torch.finfo(found.dtype).smallest_normal * torch.finfo(found.dtype).eps  # what is tiny has fewer bits
    assert found.dtype == hidden.dtype
    assert ((found.double() - exact).abs() <= bound * exact.abs() + least).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_norm_is_that_of_float64(shape: tuple[int, int], device: torch.device, dtype: torch.dtype) -> None:
    hidden, weight = (tensor(*size, device=device, dtype=dtype) for size in (shape, shape[1:]))
    with poisoned():
        found = rms_norm(hidden, weight, EPS)
    assert_normed(found, hidden, weight)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_sum_is_rounded_then_normed(shape: tuple[int, int], device: torch.device, dtype: torch.dtype) -> None:
    hidden, change, weight = (tensor(*size, device=device, dtype=dtype) for size in (shape, shape, shape[1:]))
    total, kept = hidden + change, change.clone()
    with poisoned():
        found = add_rms_norm(hidden, change, weight, EPS)
    assert torch.equal(hidden, total) and torch.equal(change, kept)
    assert_normed(found, total, weight)


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    hidden, weight = (tensor(*size, device=device, dtype=torch.float32) for size in ((2, 200), (200,)))
    assert_normed(rms_norm(hidden, weight, EPS, config=config), hidden, weight)


def test_a_row_that_is_not_finite_leaves_the_others(device: torch.device, dtype: torch.dtype) -> None:
    hidden, weight = (tensor(*size, device=device, dtype=dtype) for size in ((3, 40), (40,)))
    hidden[1, 7] = float("nan")
    found = rms_norm(hidden, weight, EPS)
    assert found[1].isnan().all()
    assert_normed(found[::2], hidden[::2], weight)


def test_no_rows_give_no_rows(device: torch.device, dtype: torch.dtype) -> None:
    hidden, weight = (tensor(*size, device=device, dtype=dtype) for size in ((0, 40), (40,)))
    assert rms_norm(hidden, weight, EPS).shape == (0, 40)


def test_what_is_too_wide_is_refused_by_name() -> None:
    assert unsupported(MAX_WIDTH) == ""
    assert unsupported(MAX_WIDTH + 1) == "rms_norm supports rows of up to 16384 values, not 16385"
