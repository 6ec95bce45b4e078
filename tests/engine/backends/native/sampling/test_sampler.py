"""Native sampling beyond what `../test_sampler.py` asks of every sampler: threads, formats, ties, tails."""

import ctypes
import math

import pytest
import torch

from contracts.messages.sampling import Sampling
from engine.backends.native.sampling.sampler import NativeSampler
from engine.backends.reference.sampling.sampler import ReferenceSampler
from engine.backends.sampler import Draw
from tests.engine.backends.native.measures import random

KINDS = [
    Sampling(1, temperature=0.0),
    Sampling(2),
    Sampling(3, top_p=0.9),
    Sampling(4, temperature=0.8, top_k=50, top_p=0.95, min_p=0.01),
]
VOCAB = 20_000  # several segments, and a rest
GREEDY = Draw(Sampling(0, temperature=0.0), (0,), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_depends_on_its_row_only(native: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Alone and in batches, with one thread, which takes whole rows, and with two, which share one."""
    sampler = NativeSampler(native)
    logits = random(24, VOCAB, seed=1, dtype=dtype) * 3
    draws = [Draw(KINDS[row % 4], (row, 1) if row % 3 else (row,), row) for row in range(24)]
    expected, _ = sampler.sample(logits, draws)
    assert len(set(expected.tolist())) > 20
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for size in (1, 3, 24):
                parts = [sampler.sample(logits[at : at + size], draws[at : at + size])[0] for at in range(0, 24, size)]
                assert torch.equal(torch.cat(parts), expected), (threads, size)
    finally:
        torch.set_num_threads(before)


def test_bf16_logits_are_sampled_as_the_same_numbers_in_fp32(native: ctypes.CDLL) -> None:
    logits = random(24, VOCAB, seed=2, dtype=torch.bfloat16) * 3
    draws = [Draw(KINDS[row % 4], (0, 5, 2), row) for row in range(24)]
    found, finite = NativeSampler(native).sample(logits, draws)
    assert torch.equal(found, NativeSampler(native).sample(logits.float(), draws)[0]) and finite.all()
    assert torch.equal(found, ReferenceSampler().sample(logits, draws)[0])


@pytest.mark.parametrize("ids", [(0, 1), (15, 16), (3, 17), (8191, 8192), (7, 8200, 19_999)])
def test_of_equal_logits_the_lowest_id_is_drawn(native: ctypes.CDLL, ids: tuple[int, ...]) -> None:
    logits = torch.full((8, VOCAB), -1.0)
    logits[:, ids] = 2.0
    assert NativeSampler(native).sample(logits, [GREEDY] * 8)[0].tolist() == [ids[0]] * 8


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 31, 8191, 8193])
def test_what_lies_behind_a_row_is_not_looked_at(native: ctypes.CDLL, vocab: int) -> None:
    """Rows that are no whole number of vectors, each followed by one that is larger, and one that is not finite."""
    logits = random(6, vocab, seed=3)
    draws = [Draw(KINDS[row % 4], (0,), row) for row in range(6)]
    expected = [int(NativeSampler(native).sample(logits[row : row + 1], draws[row : row + 1])[0]) for row in range(6)]
    logits[3] = math.nan
    found, finite = NativeSampler(native).sample(logits, draws)
    assert finite.tolist() == [row != 3 for row in range(6)]
    assert found.tolist() == [0 if row == 3 else token for row, token in enumerate(expected)]
    negative = -1 - logits.abs()
    assert NativeSampler(native).sample(negative, [GREEDY] * 6)[0][:3].tolist() == negative[:3].argmax(-1).tolist()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 8191, 8192, VOCAB - 1])
def test_one_bad_logit_is_seen_wherever_it_is(native: ctypes.CDLL, poison: float, place: int) -> None:
    logits = random(4, VOCAB, seed=4)
    logits[:, place] = poison
    draws = [Draw(kind, (0, 1), 0) for kind in KINDS]
    tokens, finite = NativeSampler(native).sample(logits, draws)
    assert not finite.any() and not tokens.any() and finite.dtype == torch.bool
