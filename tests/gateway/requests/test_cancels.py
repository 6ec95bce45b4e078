"""Cancellations until they are acknowledged: pure, with time as an argument."""

import pytest

from benchmarks.stress.giving_up import given_up
from contracts.ids import AttemptKey
from gateway.requests.cancels import Cancels, Target
from tests.effort import lines_run


def test_a_cancellation_is_repeated_until_acknowledged() -> None:
    cancels = Cancels()
    first, second = AttemptKey("r", 0, 1), AttemptKey("r", 0, 2)
    assert cancels.add("w", second, 0.0, 100.0) == second
    assert cancels.due(0.1) == []
    assert cancels.add("w", first, 0.1, 100.0) == second, "which covers it"
    assert cancels.due(0.25) == []
    assert cancels.due(0.31) == [("w", second)]
    assert cancels.due(0.5) == []
    assert cancels.due(0.75) == [("w", second)], "each wait is twice as long"
    assert cancels.acknowledged("w", first), "of an older attempt"
    assert Target("w", second.of) in cancels
    assert cancels.acknowledged("w", second)
    assert cancels.due(50.0) == [] and len(cancels) == 0
    assert not cancels.acknowledged("w", second)


def test_cancellations_end_with_the_worker_or_the_deadline() -> None:
    cancels = Cancels()
    cancels.add("w", AttemptKey("r", 0, 1), 0.0, 100.0)
    cancels.add("v", AttemptKey("r", 0, 1), 0.0, 5.0)
    cancels.worker_gone("w")
    assert len(cancels) == 1
    cancels.due(5.0)
    assert len(cancels) == 0


@pytest.mark.parametrize("streams", [32, 512])
def test_what_is_cancelled_is_sent_once_to_each_worker(streams: int) -> None:
    _, cancelled = given_up(streams)
    assert cancelled == 2 * streams


def test_a_cancellation_costs_the_same_however_many_are_open() -> None:
    """A worker's death cancels all that it had at once, on the event loop."""
    few, many = (lines_run(lambda count=count: given_up(count)) / count for count in (32, 512))  # type: ignore[misc]
    assert many < 2 * few
