"""Rates of links as a table: measured between the same machines, else between ends as near, else a prior."""

import pytest

from pricing.routes.links import PRIOR_BYTES_PER_SECOND, HostLocation, LinkRates, MeasuredLink, Nearness, nearness

A, A2 = HostLocation("a", "1", "rack-1"), HostLocation("a-too", "1", "")
B, C, E = HostLocation("b", "2", "rack-1"), HostLocation("c", "3", "rack-2"), HostLocation("e", "4", "rack-3")
UNKNOWN = HostLocation()


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
def test_the_same_host_is_nearer_than_the_same_label(one: HostLocation, other: HostLocation, near: Nearness) -> None:
    assert nearness(one, other) == nearness(other, one) == near


@pytest.mark.parametrize(
    ("measured", "sender", "receiver", "rate"),
    [
        ([], A, A2, PRIOR_BYTES_PER_SECOND[Nearness.HOST]),
        ([], A, B, PRIOR_BYTES_PER_SECOND[Nearness.LABEL]),
        ([], A, C, PRIOR_BYTES_PER_SECOND[Nearness.FAR]),
        ([(A, C, 3e8), (A, C, 4e8), (A, C, 5e8), (B, C, 1e8)], A2, C, 4e8),  # the same machines
        ([(A, C, 3e8), (B, E, 1e8)], A, E, 2e8),  # others as far
        ([(A, C, 3e8)], A, B, PRIOR_BYTES_PER_SECOND[Nearness.LABEL]),  # what is far says nothing about what is near
        ([(A, B, 1e8)], A, C, 1e8),  # but what is near bounds what is far
        ([(A, B, 9e9)], A, C, PRIOR_BYTES_PER_SECOND[Nearness.FAR]),
        ([(A, C, 0.0)], A, C, PRIOR_BYTES_PER_SECOND[Nearness.FAR]),  # never used
        ([(UNKNOWN, UNKNOWN, 5e8)], UNKNOWN, UNKNOWN, 5e8),
    ],
)
def test_rates_of_links_that_were_not_measured(
    measured: list[tuple[HostLocation, HostLocation, float]], sender: HostLocation, receiver: HostLocation, rate: float
) -> None:
    rates = LinkRates([MeasuredLink(*each) for each in measured])
    assert rates.between(sender, receiver) == pytest.approx(rate)


def test_nearer_is_never_taken_for_slower_without_a_measurement() -> None:
    assert (
        PRIOR_BYTES_PER_SECOND[Nearness.HOST]
        >= PRIOR_BYTES_PER_SECOND[Nearness.LABEL]
        >= PRIOR_BYTES_PER_SECOND[Nearness.FAR]
    )
