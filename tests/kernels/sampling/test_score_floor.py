"""What the filters leave is what a whole sort finds, at every boundary and however a row is shared."""

import pytest
import torch
from torch import Tensor

from kernels.sampling.score_floor import CANDIDATE_CONFIGS, reference, score_floor
from tests.kernels.draws import Settings, fenced, samples_of
from tests.kernels.poison import poisoned

KINDS = [
    Settings(top_k=1),
    Settings(top_k=5),
    Settings(0.7, top_p=0.9),
    Settings(1.3, top_k=20, top_p=0.6),
    Settings(min_p=0.1),
    Settings(0.9, top_k=7, top_p=0.95, min_p=0.3),
    Settings(0.0, top_k=3),
    Settings(),
]


def left(logits: Tensor, temperature: Tensor, floor: Tensor) -> Tensor:
    """Which scores of each row pass."""
    return logits.float() / temperature.where(temperature > 0, 1.0)[:, None] >= floor[:, None]


def floors(logits: Tensor, settings: list[Settings], parts: int = 1) -> Tensor:
    """Finds the floor of one sample for each row."""
    return score_floor(logits, samples_of(range(len(settings)), settings, logits.device), parts=parts)


@pytest.mark.parametrize("vocab", [37, 701])
def test_as_many_pass_as_a_sort_leaves(device: torch.device, dtype: torch.dtype, vocab: int) -> None:
    logits = fenced(len(KINDS), vocab, dtype, device, seed=vocab)
    settings = samples_of(range(0, 2 * len(KINDS), 2), KINDS, device)
    with poisoned():
        found = score_floor(logits, settings, parts=1)
    expected, own = reference(logits, settings), logits[settings.rows]
    assert torch.equal(left(own, settings.temperature, found), left(own, settings.temperature, expected))
    assert found[-2:].isneginf().all(), "neither greedy samples nor those without filters have a threshold"


def test_parts_and_tiles_do_not_move_a_threshold(device: torch.device) -> None:
    """To the bit: also where some parts hold nothing that passes, and one is empty."""
    logits = fenced(1, 300, torch.float16, device, seed=3)[:1].expand(3, -1)
    kinds = [Settings(top_k=17, top_p=0.8), Settings(0.4, top_p=0.99), Settings(top_k=1)]
    expected = floors(logits, kinds)
    assert torch.equal(floors(logits, kinds, parts=4), expected)
    again = score_floor(logits, samples_of([0, 1, 2], kinds, device), parts=4, config=CANDIDATE_CONFIGS[1])
    assert torch.equal(again, expected)


def test_equal_scores_pass_together(device: torch.device, dtype: torch.dtype) -> None:
    """Ties at a threshold; zeros of both signs; logits that are equal only after the division."""
    tied = torch.tensor([[2.0] * 3 + [1.0] * 30 + [0.0, -0.0, -3.0]], dtype=dtype, device=device)
    kinds = [Settings(top_k=2), Settings(top_k=4), Settings(top_p=0.2), Settings(top_k=35, top_p=1.0)]
    passing = left(tied.expand(4, -1), torch.ones(4, device=device), floors(tied.expand(4, -1), kinds)).sum(-1)
    assert passing.tolist() == [3, 33, 3, 35]


def test_scores_that_rounding_makes_equal_pass_together(device: torch.device) -> None:
    temperature = torch.tensor(1.7)
    larger = torch.arange(1000).mul(2.0**-23).add(1.0)
    smaller = larger.nextafter(torch.tensor(0.0))
    pair = int((larger / temperature == smaller / temperature).nonzero()[0])
    logits = torch.stack((smaller[pair], larger[pair], torch.tensor(0.5)))[None].to(device)
    floor = floors(logits, [Settings(1.7, top_k=1)])
    assert left(logits, temperature[None].to(device), floor).tolist() == [[True, True, False]]


def test_a_limit_that_is_met_exactly_leaves_the_rest_out(device: torch.device) -> None:
    """Four equal shares and others too small to count: those before each score are none, or all that there is."""
    logits = torch.tensor([[0.0, -1000.0, 0.0, -900.0, 0.0, 0.0]], device=device).expand(4, -1)
    kinds = [Settings(top_p=0.25), Settings(top_p=1 - 2.0**-53), Settings(top_p=1e-9), Settings(top_k=5, top_p=0.999)]
    passing = left(logits, torch.ones(4, device=device), floors(logits, kinds))
    assert (passing == (logits == 0)).all()


def test_each_sum_reaches_as_far_as_it_should(device: torch.device) -> None:
    """Limits just before and just behind each sum: 12 shares are within 2^-45 each, 3.5e-13 together."""
    logits = torch.arange(12.0) * -0.7
    shares = logits.double().exp()
    sums = (shares.cumsum(0) / shares.sum())[:3].tolist()
    kinds = [Settings(top_p=each + shift) for each in sums for shift in (-1e-12, 1e-12)]
    rows = logits.to(device).expand(6, -1)
    assert left(rows, torch.ones(6, device=device), floors(rows, kinds)).sum(-1).tolist() == [1, 2, 2, 3, 3, 4]
