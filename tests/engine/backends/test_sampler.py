"""Draws follow the distribution that was asked for, and depend on their counters and nothing else."""

import math
import random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contracts.messages.sampling import LARGEST_LOGIT, MIN_TEMPERATURE, Sampling
from engine.backends.gumbel import gumbel_noise, keys
from engine.backends.native.library import load
from engine.backends.native.sampling.sampler import NativeSampler
from engine.backends.reference.sampling.sampler import ReferenceSampler
from engine.backends.sampler import Draw, Sampler, min_p_reach
from tests.engine.backends.device_sampler import INTERPRETED, DeviceSampler

VOCAB = 37
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def make(name: str) -> Sampler:
    match name:
        case "torch":
            return ReferenceSampler()
        case "native":
            return NativeSampler(load())
        case _:
            return DeviceSampler()


@pytest.fixture(scope="module", params=["torch", "native", "triton"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """Each sampler, for tests of a few draws."""
    return make(request.param)


@pytest.fixture(scope="module", params=["torch", "native"] if INTERPRETED else ["torch", "native", "triton"])
def fast_sampler(request: pytest.FixtureRequest) -> Sampler:
    """Those that are fast here: for the others, `triton/test_sampler.py` compares with PyTorch's."""
    return make(request.param)


def slow(sampler: Sampler) -> bool:
    """Tells whether a test has time for a few rows only."""
    return INTERPRETED and isinstance(sampler, DeviceSampler)


def key(seed: int, sample: int, output_index: int) -> tuple[int, int]:
    """Returns the two words that key a draw."""
    low, high = keys([seed], [sample], [output_index])[0].tolist()
    return low, high


def draws(sampling: Sampling, count: int) -> list[Draw]:
    return [Draw(sampling, (0,), index) for index in range(count)]


def logits_of(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * 2


def expected_shares(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The filters' definition, one token at a time."""
    shares = torch.softmax(logits.double() / sampling.temperature, -1)
    order = sorted(range(len(shares)), key=lambda token: -float(shares[token]))
    if sampling.top_k:
        order = order[: sampling.top_k]
    inside = float(shares[order].sum())
    kept: list[int] = []
    gathered = 0.0
    for token in order:
        if kept and gathered >= sampling.top_p:
            break
        kept.append(token)
        gathered += float(shares[token]) / inside
    kept = [token for token in kept if shares[token] >= sampling.min_p * shares[order[0]]]
    left = torch.zeros_like(shares)
    left[kept] = shares[kept]
    return left / left.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=1),
        Sampling(seed=2, temperature=0.5),
        Sampling(seed=3, temperature=1.7, top_k=5),
        Sampling(seed=4, top_p=0.6),
        Sampling(seed=5, top_k=8, top_p=0.7),
        Sampling(seed=6, min_p=0.1),
        Sampling(seed=7, temperature=0.9, top_k=20, top_p=0.95, min_p=0.02),
    ],
)
def test_frequencies_fit_the_distribution(fast_sampler: Sampler, sampling: Sampling) -> None:
    """Chi-squared over 20,000 draws; the limit is five standard deviations above its mean."""
    count = 20_000
    logits = logits_of(1)
    tokens, _ = fast_sampler.sample(logits.expand(count, -1).clone(), draws(sampling, count))
    found = torch.bincount(tokens, minlength=VOCAB).double()
    expected = expected_shares(logits[0], sampling) * count
    assert (found[expected == 0] == 0).all(), "a filtered token was drawn"
    likely = expected >= 5
    squares = (found - expected)[likely].square() / expected[likely]
    freedom = int(likely.sum()) - 1
    assert float(squares.sum()) < freedom + 5 * math.sqrt(2 * freedom) + 5


def test_noise_is_gumbel_and_independent_of_its_neighbours() -> None:
    """Mean is Euler's constant, variance pi^2 / 6; counters that differ by one give unrelated noise."""
    own = torch.tensor([key(9, 0, index) for index in range(64)], dtype=torch.int32)
    noise = gumbel_noise(own, 4096).double()
    assert noise.isfinite().all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, rel=0.02)
    for left, right in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        together = torch.corrcoef(torch.stack((left.flatten(), right.flatten())))[0, 1]
        assert abs(float(together)) < 0.01


def test_the_noise_of_given_counters_never_changes() -> None:
    """A sequence that moves between workers goes on alike, so these figures are part of the protocol."""
    assert key(1, 2, 3) == (-1647408985, 307793280)
    assert key((1 << 63) - 1, 0, 0) == (1131511633, -1615179567)
    noise = gumbel_noise(torch.tensor([key(1, 2, 3)], dtype=torch.int32), 5)
    expected = [0.2880963683128357, 0.5673178434371948, 2.5834686756134033, -0.29866254329681396, 0.5521285533905029]
    assert noise[0].tolist() == pytest.approx(expected, rel=1e-6)
    seeds = [key(0, 0, 0), key(1, 0, 0), key(0, 1, 0), key(0, 0, 1), key(-1, 0, 0), key((1 << 63) - 1, 0, 0)]
    assert len(set(seeds)) == len(seeds)


def one_by_one(seed: int, sample: int, output_index: int) -> list[int]:
    """The key of one draw, in whole numbers of any size: SplitMix64's finalizer, once for each counter."""
    mask, mixed = (1 << 64) - 1, 0
    for counter in (seed, sample, output_index, 0):
        mixed = ((mixed ^ (counter & mask)) + 0x9E3779B97F4A7C15) & mask
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        mixed ^= mixed >> 31
    return [word - ((word >> 31) << 32) for word in (mixed & 0xFFFFFFFF, mixed >> 32)]


def test_the_keys_of_many_draws_are_those_of_each() -> None:
    draw = random.Random(7)
    seeds = [0, 1, -1, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, *(draw.getrandbits(63) for _ in range(200))]
    samples = [draw.randrange(128) for _ in seeds]
    indices = [draw.randrange(1 << 20) for _ in seeds]
    found = keys(seeds, samples, indices)
    assert found.dtype == np.int32
    assert found.tolist() == [one_by_one(*each) for each in zip(seeds, samples, indices, strict=True)]


def test_a_row_draws_the_same_in_any_company(sampler: Sampler) -> None:
    """Equal tokens, alone, in any order, and beside rows with other filters."""
    rows, vocab = (4, 257) if slow(sampler) else (40, 5001)
    kinds = [Sampling(seed=1), Sampling(seed=2, top_p=0.8), Sampling(seed=3, top_k=3), Sampling(seed=4, temperature=0)]
    mixed = [Draw(kinds[row % 4], (row % 3,), row) for row in range(rows)]
    logits = logits_of(rows, vocab)
    together, _ = sampler.sample(logits.clone(), mixed)
    alone = [int(sampler.sample(logits[row : row + 1].clone(), mixed[row : row + 1])[0]) for row in range(rows)]
    assert together.tolist() == alone
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled, _ = sampler.sample(logits[order].clone(), [mixed[row] for row in order])
    assert shuffled.tolist() == together[order].tolist()


@pytest.mark.parametrize("vocab", [VOCAB, 5001])
def test_samples_of_one_row_are_what_they_would_be_alone(sampler: Sampler, vocab: int) -> None:
    vocab = min(vocab, 300) if slow(sampler) else vocab
    kinds = [Sampling(seed=1), Sampling(seed=2, top_p=0.8, min_p=0.01), Sampling(seed=3, temperature=0)]
    logits = logits_of(6, vocab)
    several = [(4, 0, 1), (2,), (0, 1), (7, 3, 5, 1), (0,), (1, 2)]
    together, finite = sampler.sample(
        logits.clone(), [Draw(kinds[row % 3], samples, 9 + row) for row, samples in enumerate(several)]
    )
    alone = [
        int(sampler.sample(logits[row : row + 1].clone(), [Draw(kinds[row % 3], (one,), 9 + row)])[0])
        for row, samples in enumerate(several)
        for one in samples
    ]
    assert together.tolist() == alone and finite.tolist() == [True] * len(alone)
    assert len(set(together[:3].tolist())) > 1, "samples of a flat row differ"


def test_greedy_is_the_largest_and_seeds_do_not_matter(sampler: Sampler) -> None:
    rows = 4 if slow(sampler) else 16
    logits = logits_of(rows)
    tokens, finite = sampler.sample(
        logits.clone(), [Draw(Sampling(seed=row, temperature=0), (0,), 0) for row in range(rows)]
    )
    assert tokens.tolist() == logits.argmax(-1).tolist() and finite.all()
    assert sampler.sample(logits.clone(), draws(Sampling(seed=1, top_k=1), rows))[0].tolist() == tokens.tolist()


@pytest.mark.parametrize(
    "temperature", [5e-324, 1e-46, 1e-45, 1e-38, 1e-30, MIN_TEMPERATURE * 0.999, MIN_TEMPERATURE, 2 * MIN_TEMPERATURE]
)
def test_a_tiny_temperature_is_greedy(sampler: Sampler, temperature: float) -> None:
    """Below `MIN_TEMPERATURE` sampling is greedy; from it on, neighbouring logits are still at least 16 units apart."""
    rows = 2 if slow(sampler) else 16
    kinds = [
        Sampling(1, temperature),
        Sampling(2, temperature, top_p=0.9, top_k=7),
        Sampling(3, temperature, min_p=0.1),
    ]
    logits = -logits_of(rows).abs()
    logits[:, 9], logits[:, 5] = 1.0, 1 - 2.0**-24
    for scale in (1.0, 2.0**95):
        assert float(logits.abs().max()) * scale < LARGEST_LOGIT
        for kind in kinds[1:2] if slow(sampler) else kinds:
            tokens, finite = sampler.sample(logits * scale, draws(kind, rows))
            assert tokens.tolist() == [9] * rows and finite.all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sampling", [Sampling(seed=1, temperature=0), Sampling(seed=1, top_p=0.9, top_k=7)])
def test_rows_that_are_not_finite_are_named_and_disturb_nobody(
    sampler: Sampler, poison: float, sampling: Sampling
) -> None:
    logits = logits_of(3)
    clean, _ = sampler.sample(logits.clone(), draws(sampling, 3))
    logits[1, 11] = poison
    tokens, finite = sampler.sample(logits.clone(), draws(sampling, 3))
    assert finite.tolist() == [True, False, True]
    assert tokens[finite].tolist() == clean[finite].tolist() and int(tokens[1]) == 0
    several, finite = sampler.sample(logits[:2].clone(), [Draw(sampling, (0,), 0), Draw(sampling, (0, 1), 1)])
    assert finite.tolist() == [True, False, False] and several.tolist() == [int(clean[0]), 0, 0]


def exact_noise(draw: Draw, vocab: int) -> Doubles:
    """Of the first sample, in float64, from the same 31 bits."""
    low, high = (np.uint64(word & 0xFFFFFFFF) for word in key(draw.sampling.seed, draw.samples[0], draw.output_index))
    word = np.uint64(0xFFFFFFFF)
    bits = (np.arange(vocab, dtype=np.uint64) * np.uint64(0x9E3779B9) + low) & word
    bits = ((bits ^ (bits >> np.uint64(16))) * np.uint64(0x21F0AAAD)) & word
    bits = ((bits ^ (bits >> np.uint64(15))) + high) & word
    bits = (bits * np.uint64(0xD35A2D97)) & word
    bits = (bits ^ (bits >> np.uint64(15))) & np.uint64(0x7FFFFFFF)
    v = np.minimum((bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-31), np.float32(1 - 2.0**-24))
    noise: Doubles = -np.log(-np.log1p(-v.astype(np.float64)))
    return noise


def left_by_filters(scaled: Floats, sampling: Sampling, slack: float) -> NDArray[np.bool_]:
    """Which scores pass, with `slack` on top of top_p: its sums are of rounded shares."""
    shares = np.exp((scaled - scaled.max()).astype(np.float64))
    order = np.argsort(-scaled, kind="stable")
    falling = scaled[order]
    count = sampling.top_k if 0 < sampling.top_k < len(scaled) else len(scaled)
    sums = np.concatenate(([0.0], np.cumsum(shares[order])))
    larger = np.searchsorted(-falling, -scaled, side="left")  # how many are larger than each
    kept: NDArray[np.bool_] = (larger < count) & (scaled >= scaled.max() + np.float32(min_p_reach(sampling)))
    if sampling.top_p < 1:
        kept &= (sums[larger] < (sampling.top_p + slack) * sums[count]) | (larger == 0)
    return kept


@pytest.mark.parametrize("vocab", [1, 15, 257, 5001, 70_000])
@pytest.mark.parametrize(("spread", "lead"), [(0.0, 0.0), (0.01, 9.0), (3.0, 0.0), (60.0, 0.0), (1e30, 0.0)])
def test_a_draw_is_the_best_of_what_the_filters_leave(
    fast_sampler: Sampler, vocab: int, spread: float, lead: float
) -> None:
    """Against float64. Of two scores closer than rounding either may win: each noise is within two units in its last
    place (2^-19 at most, as it stays below 32), and a score is rounded once more. Sums of shares are within 1e-5: 64
    additions between doubles of shares, of which each has an argument that is exact and two units of error.
    """
    kinds = [
        Sampling(1),
        Sampling(2, temperature=0.01),
        Sampling(3, temperature=50.0),
        Sampling(4, top_k=1),
        Sampling(5, top_k=40),
        Sampling(6, top_k=vocab - 1),
        Sampling(7, top_p=0.9),
        Sampling(8, top_p=1e-9),
        Sampling(9, top_p=0.999999),
        Sampling(10, top_k=7, top_p=0.5),
        Sampling(11, min_p=0.05),
        Sampling(12, min_p=1.0),
        Sampling(13, temperature=0.7, top_k=100, top_p=0.95, min_p=0.01),
    ]
    logits = logits_of(len(kinds), vocab, seed=vocab) * spread / 2
    logits[:, : vocab // 2] = logits[:, : vocab // 2].bfloat16().float()  # some are equal
    logits[:, -1] += lead  # before many that have more mass together
    drawn = [Draw(kind, (3,), index) for index, kind in enumerate(kinds)]
    tokens, finite = fast_sampler.sample(logits.clone(), drawn)
    assert finite.all()
    for row, token, draw in zip(logits.numpy(), tokens.tolist(), drawn, strict=True):
        scaled = row / np.float32(draw.sampling.temperature)
        scores = scaled.astype(np.float64) + exact_noise(draw, vocab)
        assert left_by_filters(scaled, draw.sampling, 1e-5)[token], draw
        best = scores[left_by_filters(scaled, draw.sampling, -1e-5)].max()
        assert scores[token] >= best - 2 * (2.0**-18 + 2.0**-24 * np.abs(scores).max()), draw


def test_noise_is_exact_to_its_rounding(fast_sampler: Sampler) -> None:
    """Of two tokens that all others are far behind, one leads by twice the error: that one is drawn. Pairs are made of
    the largest, the least and ordinary noise.
    """
    vocab, lead = 70_000, 4 * 2.0**-18
    for index in range(24):
        draw = Draw(Sampling(seed=7), (1,), index)
        noise = exact_noise(draw, vocab)
        order = np.argsort(-noise)
        for one, other in (order[:2], order[1:3], order[[0, -1]], order[[2, 900]], np.array([index, index + 17])):
            for winner, ahead in ((one, -lead), (other, lead)):
                logits = torch.full((1, vocab), -1000.0)
                logits[0, one], logits[0, other] = 0.0, float(noise[one] - noise[other] + ahead)
                assert int(fast_sampler.sample(logits, [draw])[0]) == winner
