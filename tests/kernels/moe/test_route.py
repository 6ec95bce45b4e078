"""Experts are chosen and weighed as by PyTorch's operators in float64, for each kind of router."""

import pytest
import torch
from torch import Tensor

from kernels.moe.route import CANDIDATE_CONFIGS, Routing, reference, route, unsupported
from kernels.tuning import Config
from tests.kernels.poison import poisoned

MIXTRAL = Routing(2, "softmax_of_used")
QWEN = Routing(8, "softmax", normalized=True)
DEEPSEEK_2 = Routing(6, "softmax", scale=16.0, groups=8, groups_used=3)
DEEPSEEK_3 = Routing(8, "sigmoid", normalized=True, scale=2.5, groups=8, groups_used=4, best_two=True)
CASES = [
    (MIXTRAL, 8, False),
    (QWEN, 128, False),
    (Routing(3), 7, True),
    (Routing(4, "softmax_of_used"), 32, False),
    (DEEPSEEK_2, 160, False),
    (DEEPSEEK_3, 256, True),
    (Routing(2, "sigmoid", groups=3, groups_used=1, best_two=True), 9, True),
    (Routing(5, "softmax_of_used"), 5, False),
    (Routing(1, "sigmoid", scale=0.5), 1, False),
]
MAX_ERROR = 64 * 2.0**-24
"""Of a share: logits are up to 5, so that a power is wrong by some ten units of fp32; the sums are of up to 256
positive numbers, in trees and by threads of eight; some ten operations more."""


def logits_of(tokens: int, experts: int, device: torch.device) -> Tensor:
    """No two of a row are closer than fp32 tells apart behind every kind of scores."""
    order = torch.stack([torch.randperm(experts) for _ in range(tokens)])
    return ((order - experts / 2) * (9.0 / max(experts, 9)) + torch.rand(tokens, 1)).to(device)


def check(logits: Tensor, routing: Routing, correction: Tensor | None = None, config: Config | None = None) -> None:
    with poisoned():
        chosen, shares = route(logits, routing, correction, config=config)
    wanted, exact = reference(logits.double(), routing, None if correction is None else correction.double())
    assert chosen.dtype == torch.int32 and shares.dtype == torch.float32
    assert torch.equal(chosen, wanted)
    assert ((shares.double() - exact).abs() <= MAX_ERROR * exact.abs()).all()


@pytest.mark.parametrize(("routing", "experts", "corrected"), CASES, ids=str)
@pytest.mark.parametrize("tokens", [1, 5])
def test_the_choice_is_that_of_float64(
    tokens: int, routing: Routing, experts: int, corrected: bool, device: torch.device
) -> None:
    correction = torch.randint(-3, 4, (experts,), device=device) / 8 if corrected else None
    check(logits_of(tokens, experts, device), routing, correction)


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    check(logits_of(3, 256, device), DEEPSEEK_3, torch.zeros(256, device=device), config)


def test_of_equal_ones_the_first_are_chosen(device: torch.device) -> None:
    for routing in (QWEN, DEEPSEEK_3):
        chosen, shares = route(torch.zeros((2, 128), device=device), routing)
        assert chosen.tolist() == [[*range(8)]] * 2
        assert shares.unique().numel() == 1


def test_what_is_no_number_shows_in_its_row_alone(device: torch.device) -> None:
    logits = logits_of(3, 7, device)
    logits[1, 2] = torch.nan
    logits[2] = torch.nan
    for routing in (Routing(7), Routing(7, "softmax_of_used"), Routing(3, "sigmoid", normalized=True)):
        chosen, shares = route(logits, routing)
        assert all(len({*row}) == routing.used and {*row} <= {*range(7)} for row in chosen.tolist())
        assert shares[0].isfinite().all() and shares[1:].isnan().all()


def test_scores_that_vanish_are_not_divided_by_nothing(device: torch.device) -> None:
    _, shares = route(torch.full((1, 4), -100.0, device=device), Routing(2, "sigmoid", normalized=True))
    assert shares.isfinite().all()


def test_no_tokens_are_no_work(device: torch.device) -> None:
    chosen, shares = route(torch.empty((0, 8), device=device), MIXTRAL)
    assert chosen.shape == shares.shape == (0, 2)


def test_too_many_experts_are_named() -> None:
    assert unsupported(512) == "" and unsupported(1025) == "route supports up to 1024 experts, not 1025"
