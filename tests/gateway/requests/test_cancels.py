"""Cancellations until they are acknowledged: pure, with time as an argument."""

from core.ids import SequenceKey
from gateway.requests.cancels import Cancels, Target


def test_a_cancellation_is_repeated_until_acknowledged() -> None:
    cancels = Cancels()
    target = Target("w", SequenceKey("r", 0))
    cancels.add(target, 2, 0.0, 100.0)
    assert cancels.due(0.0) == [(target, 2)]
    assert cancels.due(0.1) == []
    assert cancels.due(0.25) == [(target, 2)]
    assert cancels.acknowledged(target, 1), "of an older attempt"
    assert target in cancels
    assert cancels.acknowledged(target, 2)
    assert cancels.due(50.0) == [] and len(cancels) == 0
    assert not cancels.acknowledged(target, 2)


def test_cancellations_end_with_the_worker_or_the_deadline() -> None:
    cancels = Cancels()
    cancels.add(Target("w", SequenceKey("r", 0)), 1, 0.0, 100.0)
    cancels.add(Target("v", SequenceKey("r", 0)), 1, 0.0, 5.0)
    cancels.worker_gone("w")
    assert len(cancels) == 1
    cancels.due(5.0)
    assert len(cancels) == 0
