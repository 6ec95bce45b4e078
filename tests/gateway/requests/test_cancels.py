"""Cancellations until they are acknowledged: pure, with time as an argument."""

from core.ids import AttemptKey
from gateway.requests.cancels import Cancels, Target


def test_a_cancellation_is_repeated_until_acknowledged() -> None:
    cancels = Cancels()
    first, second = AttemptKey("r", 0, 1), AttemptKey("r", 0, 2)
    cancels.add("w", second, 0.0, 100.0)
    assert cancels.due(0.0) == [("w", second)]
    assert cancels.due(0.1) == []
    assert cancels.due(0.25) == [("w", second)]
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
