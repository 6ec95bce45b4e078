"""Cancellations until they are acknowledged: pure, with time as an argument."""

import sys
from types import FrameType
from typing import Any

from benchmarks.stress.giving_up import given_up
from core.ids import AttemptKey
from gateway.requests.cancels import Cancels, Target


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


def test_a_cancellation_costs_the_same_however_many_are_open() -> None:
    """A worker's death cancels all that it had at once, on the event loop."""
    few, many = (lines_run(count) / count for count in (32, 512))
    assert many < 2 * few


def lines_run(streams: int) -> int:
    """Gives streams up, and counts the lines that run for it: a clock would measure the machine."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _, cancelled = given_up(streams)
    finally:
        sys.settrace(before)
    assert cancelled == 2 * streams, "what is new, and nothing again"
    return count
