"""Lengths as the command line spells them."""

import random
from statistics import median

import pytest

from contracts.errors import ConfigError
from workloads.lengths import MAX_LENGTH_TOKENS, Lengths, parse_lengths


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("256", Lengths(256, 256)),
        ("uniform:64-1024", Lengths(64, 1024)),
        ("lognormal:300,0.8", Lengths(300, 300, 0.8)),
    ],
)
def test_reads_each_spelling(text: str, lengths: Lengths) -> None:
    assert parse_lengths(text, "--prompt-tokens") == lengths


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "uniform:9-8", "uniform:0-8", "lognormal:0,1", "normal:3,1", "2000000"]
)
def test_refuses_what_is_no_length(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--output-tokens.*expected a number of tokens"):
        parse_lengths(text, "--output-tokens")


def test_draws_from_the_distribution() -> None:
    chance = random.Random(1)
    assert {Lengths(7, 7).draw(chance) for _ in range(9)} == {7}
    assert {Lengths(3, 5).draw(chance) for _ in range(99)} == {3, 4, 5}
    drawn = [Lengths(300, 300, 0.8).draw(chance) for _ in range(4001)]
    assert median(drawn) == pytest.approx(300, rel=0.05)
    share_below_one_sigma = sum(length < 300 * 2.2255 for length in drawn) / len(drawn)  # e^0.8 = 2.2255
    assert share_below_one_sigma == pytest.approx(0.8413, abs=0.03)
    assert max(Lengths(MAX_LENGTH_TOKENS, MAX_LENGTH_TOKENS, 9.0).draw(chance) for _ in range(9)) == MAX_LENGTH_TOKENS
