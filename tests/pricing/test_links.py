"""Rates of links as a table: measured between the same machines, else between ends as near, else a prior."""

import pytest

from pricing.links import PRIOR, LinkRates, Measured
from pricing.places import Nearness, Place, nearness

A, A2 = Place("a", "1", "rack-1"), Place("a-too", "1", "")
B, C, E = Place("b", "2", "rack-1"), Place("c", "3", "rack-2"), Place("e", "4", "rack-3")
UNKNOWN = Place()


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        (A, A2, Nearness.HOST),
        (A, B, Nearness.LABEL),
        (A, C, Nearness.FAR),
        (A2, B, Nearness.FAR),
        (UNKNOWN, UNKNOWN, Nearness.FAR),
    ],
)
def test_the_same_host_is_nearer_than_the_same_label(one: Place, other: Place, near: Nearness) -> None:
    assert nearness(one, other) == nearness(other, one) == near


@pytest.mark.parametrize(
    ("measured", "sender", "receiver", "rate"),
    [
        ([], A, A2, PRIOR[Nearness.HOST]),
        ([], A, B, PRIOR[Nearness.LABEL]),
        ([], A, C, PRIOR[Nearness.FAR]),
        ([(A, C, 3e8), (A, C, 4e8), (A, C, 5e8), (B, C, 1e8)], A2, C, 4e8),  # the same machines
        ([(A, C, 3e8), (B, E, 1e8)], A, E, 2e8),  # others as far
        ([(A, C, 3e8)], A, B, PRIOR[Nearness.LABEL]),  # what is far says nothing about what is near
        ([(A, B, 1e8)], A, C, 1e8),  # but what is near bounds what is far
        ([(A, B, 9e9)], A, C, PRIOR[Nearness.FAR]),
        ([(A, C, 0.0)], A, C, PRIOR[Nearness.FAR]),  # never used
        ([(UNKNOWN, UNKNOWN, 5e8)], UNKNOWN, UNKNOWN, 5e8),
    ],
)
def test_rates_of_links_that_were_not_measured(
    measured: list[tuple[Place, Place, float]], sender: Place, receiver: Place, rate: float
) -> None:
    rates = LinkRates([Measured(*each) for each in measured])
    assert rates.between(sender, receiver) == pytest.approx(rate)


def test_nearer_is_never_taken_for_slower_without_a_measurement() -> None:
    assert PRIOR[Nearness.HOST] >= PRIOR[Nearness.LABEL] >= PRIOR[Nearness.FAR]
