"""Draws are the reference's, to the token: for every setting and format, and however rows are shared."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kernels.sampling.sample import (
    CANDIDATE_CONFIGS,
    MIN_PART_LOGITS,
    part_count,
    reference,
    reference_noise,
    sample,
    unsupported,
)
from kernels.sampling.score_floor import MAX_PARTS, MAX_VOCAB
from kernels.tuning import Config
from tests.kernels.draws import Settings, fenced, samples_of
from tests.kernels.poison import poisoned

GREEDY = Settings(0.0)
KINDS = [
    GREEDY,
    Settings(),
    Settings(0.3),
    Settings(2.0, top_k=9),
    Settings(top_p=0.8),
    Settings(1.5, min_p=0.05),
    Settings(0.7, top_k=30, top_p=0.9, min_p=0.001),
]


def random_bits(*shape: int, seed: int, device: torch.device) -> Tensor:
    bits = torch.randint(-(1 << 31), 1 << 31, shape, generator=torch.Generator().manual_seed(seed))
    return bits.to(dtype=torch.int32, device=device)


@pytest.mark.parametrize("vocab", [1, 67, 1500])
def test_draws_are_the_references(device: torch.device, dtype: torch.dtype, vocab: int) -> None:
    """Several samples draw from one row, some rows have none; what is around the rows is NaN."""
    logits = fenced(4, vocab, dtype, device, seed=vocab)
    settings = samples_of([0, 0, 2, 4, 4, 4, 2], KINDS, device, torch.float32)
    keys = random_bits(len(KINDS), 2, seed=1, device=device)
    with poisoned():
        found = sample(logits, settings, keys, filtered=True)
    expected = reference(logits, settings, keys, filtered=True)
    assert torch.equal(found[0], expected[0]) and found[1].all() and expected[1].all()


@pytest.mark.parametrize("samples", [1, 20])
def test_draws_without_filters_are_the_references(device: torch.device, dtype: torch.dtype, samples: int) -> None:
    """Also where the settings have filters, of which nobody spoke."""
    logits = fenced(1, 3 * MIN_PART_LOGITS + 5, dtype, device, seed=samples, spread=0.5)
    settings = samples_of([0] * samples, [Settings(0.8, top_k=1)] * samples, device)
    keys = random_bits(samples, 2, seed=3, device=device)
    tokens, _ = sample(logits, settings, keys, filtered=False)
    assert torch.equal(tokens, reference(logits, settings, keys, filtered=False)[0])
    assert samples == 1 or len(set(tokens.tolist())) > 15, "samples of a flat row differ"


@pytest.mark.parametrize(("config", "parts"), [*zip(CANDIDATE_CONFIGS, (1, 2, 5, 3), strict=True)])
def test_of_equal_scores_the_lowest_id_is_drawn(device: torch.device, config: Config, parts: int) -> None:
    """Wherever they are: neighbours, in one lane of two tiles, in two parts."""
    ids = [(0, 1), (15, 2500), (700, 1724), (2048, 4999), (4998, 4999)]
    logits = torch.full((len(ids), 5000), -1.0, device=device)
    for row, equal in zip(logits, ids, strict=True):
        row[list(equal)] = 2.0
    settings = samples_of(range(len(ids)), [GREEDY] * len(ids), device)
    keys = random_bits(len(ids), 2, seed=4, device=device)
    tokens, _ = sample(logits, settings, keys, filtered=False, parts=parts, config=config)
    assert tokens.tolist() == [lower for lower, _ in ids]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_one_bad_logit_is_seen_wherever_it_is(device: torch.device, poison: float) -> None:
    """Who draws from another row does not notice."""
    kinds, places = [GREEDY, Settings(), Settings(0.5, top_k=3, top_p=0.9), Settings(min_p=0.1)], [0, 20, 69]
    logits = fenced(4, 70, torch.float32, device, seed=6)[::2]
    settings = samples_of([0, 1, 2, 3], kinds, device)
    keys = random_bits(4, 2, seed=5, device=device)
    for row, place in enumerate(places):
        logits[row, place] = poison
    tokens, finite = sample(logits, settings, keys, filtered=True, parts=2)
    expected, _ = reference(logits, settings, keys, filtered=True)
    assert finite.tolist() == [False, False, False, True]
    assert tokens.tolist() == [0, 0, 0, int(expected[3])]


def test_noise_is_exact_to_its_rounding(device: torch.device) -> None:
    """Of two ids that all others are far behind, one leads by twice the error: that one is drawn.

    Noise is below 23, where fp32 numbers are 2^-19 apart; two logarithms of one unit each and two sums of half a unit
    err by less than 2^-17. Pairs are made of the largest, the least and ordinary noise.
    """
    vocab, lead = 900, 2.0**-16
    keys = random_bits(6, 2, seed=8, device=device)
    v = -torch.expm1(-torch.exp(-reference_noise(keys, vocab).double()))
    noise = -(-(-v).log1p()).log()
    orders = noise.argsort(-1, descending=True)
    pairs = [
        (row, *pair) for row, order in enumerate(orders) for pair in (order[:2], order[1:3], order[[0, -1]], order[-2:])
    ]
    cases = [(row, one, other, ahead) for row, one, other in pairs for ahead in (-lead, lead)]
    logits = torch.full((len(cases), vocab), -1000.0, device=device)
    for scores, (row, one, other, ahead) in zip(logits, cases, strict=True):
        scores[one], scores[other] = 0.0, noise[row, one] - noise[row, other] + ahead
    settings = samples_of(range(len(cases)), [Settings()] * len(cases), device)
    own = keys[torch.tensor([row for row, *_ in cases])]
    tokens, _ = sample(logits, settings, own, filtered=False)
    assert tokens.tolist() == [int(one if ahead < 0 else other) for _, one, other, ahead in cases]


def test_parts_fill_the_device_and_are_worth_a_program() -> None:
    counts = [part_count(samples, 128_256, 132) for samples in (1, 2, 8, 64, 256, 512, 5000)]
    assert counts[0] == 126 and counts[-1] == 1 and all(more >= fewer for more, fewer in pairwise(counts))
    assert part_count(1, MAX_VOCAB, 132) == MAX_PARTS
    assert part_count(3, 10, 132) == part_count(1, MIN_PART_LOGITS, 132) == 1


def test_what_cannot_be_sampled_is_named() -> None:
    assert unsupported(torch.bfloat16, MAX_VOCAB) == ""
    assert "float64" in unsupported(torch.float64, 10)
    assert str(MAX_VOCAB + 1) in unsupported(torch.float32, MAX_VOCAB + 1)
