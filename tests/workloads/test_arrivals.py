"""Arrivals follow their rate, and their gaps the gamma distribution."""

import math
import random
from itertools import islice, pairwise, takewhile

import pytest

from workloads.arrivals import Arrivals, Profile


def gaps_of(arrivals: Arrivals, count: int) -> list[float]:
    times = list(islice(arrivals.times(random.Random(1)), count + 1))
    assert times[0] == 0.0
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_variance_of_the_gamma_distribution(burstiness: float) -> None:
    gaps = gaps_of(Arrivals(4.0, burstiness=burstiness), 20_000)
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert variance == pytest.approx(mean**2 / burstiness, rel=0.1)


def test_an_infinite_burstiness_makes_even_gaps() -> None:
    assert gaps_of(Arrivals(4.0, burstiness=math.inf), 8) == [0.25] * 8


def test_a_seed_repeats_its_arrivals() -> None:
    arrivals = Arrivals(4.0, "sinusoid", 8.0, 30.0)
    assert list(islice(arrivals.times(random.Random(7)), 100)) == list(islice(arrivals.times(random.Random(7)), 100))


@pytest.mark.parametrize(
    ("profile", "in_quarters"),
    [
        # Integrals over quarters of 100 s, of a rate from 10 to 50 requests/s.
        ("constant", [250, 250, 250, 250]),
        ("ramp", [375, 625, 875, 1125]),
        ("sinusoid", []),
        ("steps", [20 * 10 + 5 * 20, 15 * 20 + 10 * 30, 10 * 30 + 15 * 40, 5 * 40 + 20 * 50]),
    ],
)
def test_the_rate_follows_its_profile(profile: Profile, in_quarters: list[float]) -> None:
    if profile == "sinusoid":  # 30 - 20 cos(2 pi t / 100): its integral over the first quarter is 750 - 1000 / pi
        low, high = 750 - 1000 / math.pi, 750 + 1000 / math.pi
        in_quarters = [low, high, high, low]
    arrivals = Arrivals(10.0, profile, 50.0, 100.0, burstiness=math.inf)
    quarters = [arrivals.expected(25.0 * (n + 1)) - arrivals.expected(25.0 * n) for n in range(4)]
    assert quarters == pytest.approx(in_quarters)
    times = list(takewhile(lambda at: at < 100, arrivals.times(random.Random(0))))
    for quarter, expected in enumerate(in_quarters):
        assert sum(25 * quarter <= at < 25 * (quarter + 1) for at in times) == pytest.approx(expected, abs=1.01)


def test_after_a_ramp_the_rate_stays() -> None:
    profiles: list[Profile] = ["ramp", "steps"]
    for profile in profiles:
        arrivals = Arrivals(1.0, profile, 5.0, 10.0)
        assert arrivals.expected(30.0) - arrivals.expected(20.0) == pytest.approx(50.0)
