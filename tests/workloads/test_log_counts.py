"""Percentiles from counts in classes, beside those of the sorted values."""

import random

import msgspec
import pytest

from contracts.slo import percentile
from workloads.log_counts import RELATIVE_ERROR, SMALLEST_VALUE, LogCounts

SHARES = (0.0, 0.001, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def counted(values: list[float]) -> LogCounts:
    found = LogCounts()
    for value in values:
        found.add(value)
    return found


def test_ranks_are_the_nearest_and_equal_values_are_exact() -> None:
    assert counted([float(n) for n in range(1, 101)]).percentiles(0.5, 0.9, 0.95, 0.99) == [50.0, 90.0, 95.0, 99.0]
    assert counted([]).percentiles(0.5, 0.9) == [0.0, 0.0] and counted([]).mean == 0.0
    assert counted([0.0] * 3 + [8.0]).percentiles(0.5, 0.99) == [0.0, 8.0]


@pytest.mark.parametrize("sigma", [0.001, 0.3, 4.0])
def test_percentiles_are_within_the_error(sigma: float) -> None:
    """However narrow or wide the values are spread: within a class, over some, and over ten orders of magnitude."""
    chance = random.Random(1)
    values = [chance.lognormvariate(3.0, sigma) for _ in range(20_000)]
    found = counted(values[:7_000])
    found.merge(counted(values[7_000:]))
    assert (found.count, found.largest) == (len(values), max(values))
    assert found.mean == pytest.approx(sum(values) / len(values))
    for share, shown in zip(SHARES, found.percentiles(*SHARES), strict=True):
        true = percentile(values, share)
        assert shown == pytest.approx(true, rel=1.001 * RELATIVE_ERROR, abs=SMALLEST_VALUE)


def test_memory_is_bounded_by_the_classes_and_not_by_the_values() -> None:
    found = LogCounts()
    for number in range(30_000):
        found.add(20.0 + number / 1e4, count=1000)
    assert found.count == 30_000_000
    assert len(msgspec.json.encode(found)) < 10_000
