"""Log-probabilities are a float64 softmax's, ranks and likeliest tokens the reference's, however rows are cut."""

import math

import pytest
import torch
from torch import Tensor

from contracts.scores import MAX_TOP_LOGPROBS
from engine.backends.scorer import MIN_LOGPROB
from kernels.sampling import token_scores as kernel
from kernels.sampling.token_scores import CANDIDATE_CONFIGS, reference, token_scores
from kernels.tuning import Config
from tests.kernels.draws import fenced
from tests.kernels.poison import poisoned

MAX_ERROR = 2.0**-20
"""Exponentials and sums of a few units in the last place are within 2^-21 of the sum, and so of its logarithm; a
log-probability above -16 is rounded by 2^-21 at most."""


def agree(found: Tensor, expected: Tensor, top: int) -> None:
    """The same ranks and ids; log-probabilities as good as fp32's sums."""
    whole = [1, *range(2, 2 + top)]
    assert torch.equal(found[:, whole], expected[:, whole])
    logprobs = [0, *range(2 + top, 2 + 2 * top)]
    one, other = (each[:, logprobs].contiguous().view(torch.float32).double() for each in (found, expected))
    assert float((one - other).abs().max()) <= MAX_ERROR


def test_both_sides_know_the_same_limits() -> None:
    assert (kernel.MAX_TOP.value, kernel.LEAST_LOGPROB.value) == (MAX_TOP_LOGPROBS, MIN_LOGPROB)


@pytest.mark.parametrize(("vocab", "top"), [(1, 1), (67, 5), (2048, 20), (5001, 20), (5001, 0)])
def test_scores_are_the_references(device: torch.device, dtype: torch.dtype, vocab: int, top: int) -> None:
    """Several tokens have one row, some rows have none; what is around the rows is NaN, and half of the logits tie."""
    logits = fenced(4, vocab, dtype, device, seed=vocab)
    rows = torch.tensor([0, 4, 2, 2, 0], device=device)
    tokens = torch.tensor([0, vocab - 1, vocab // 2, vocab // 3, vocab // 2], device=device)
    with poisoned():
        found = token_scores(logits, rows, tokens, top)
    agree(found, reference(logits, rows, tokens, top), top)


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS)
def test_of_equal_logits_the_lower_id_comes_first(device: torch.device, config: Config) -> None:
    """In one tile, in neighbouring ones, and where one zero is negative."""
    logits = torch.full((1, 9000), -1.0, device=device)
    ids = [17, 18, 2047, 2048, 4095, 4096, 8999]
    logits[0, ids] = 0.0
    logits[0, ids[::2]] = -0.0
    row, token = torch.zeros(1, dtype=torch.int64, device=device), torch.tensor([18], device=device)
    found = token_scores(logits, row, token, 9, config=config)
    assert found[0, 2:11].tolist() == [*ids, 0, 1]
    assert int(found[0, 1]) == 1, "others are equal, none is larger"
    agree(found, reference(logits, row, token, 9), 9)


def test_what_is_as_good_as_impossible_has_a_number(device: torch.device) -> None:
    logits = torch.tensor([[0.0, -(2.0**98), 1.0]], device=device)
    row, token = torch.zeros(1, dtype=torch.int64, device=device), torch.tensor([1], device=device)
    found = token_scores(logits, row, token, 3)
    assert found[0, 2:5].tolist() == [2, 0, 1] and int(found[0, 1]) == 3
    assert found[0, [0, 7]].view(torch.float32).tolist() == [MIN_LOGPROB, MIN_LOGPROB]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_bad_row_does_not_touch_the_others(device: torch.device, poison: float) -> None:
    logits = fenced(3, 3000, torch.float32, device, seed=2)[::2]
    rows, tokens = torch.arange(3, device=device), torch.tensor([5, 6, 7], device=device)
    expected = token_scores(logits, rows, tokens, 4)
    for place in (0, 6, 2500):
        bad = logits.clone()
        bad[1, place] = poison
        found = token_scores(bad, rows, tokens, 4)
        assert torch.equal(found[::2], expected[::2]) and found[1, 0].view(torch.float32).isnan()
