"""Predictions are corrected by measured first tokens: the overhead of each request, the delay of queues, the margin."""

import pytest

from pricing.routes.candidate import WorkerKind
from pricing.routes.correction import (
    MAX_QUEUE_RATIO,
    MIN_MARGIN,
    MIN_QUEUE_SAMPLES,
    QUEUE_WINDOW,
    FirstTokenCorrection,
    Forecast,
)

CPU, GPU = WorkerKind("prefill", "c", "cpu"), WorkerKind("prefill", "c", "cuda")


def alone(seconds: float, kind: WorkerKind = CPU) -> Forecast:
    return Forecast(kind, seconds, seconds)


def queued(seconds: float, kind: WorkerKind = CPU) -> Forecast:
    """It stands in a line, half of which it is itself."""
    return Forecast(kind, seconds, seconds / 2)


def learned(*times: tuple[Forecast, float], rounds: int = 20) -> FirstTokenCorrection:
    """Makes predictions that have seen each forecast's first token after so many seconds, several times."""
    correction = FirstTokenCorrection()
    for _ in range(rounds):
        for forecast, measured in times:
            correction.learn(forecast, correction.expected(forecast), measured)
    return correction


def test_what_is_added_is_bounded_and_never_taken_away() -> None:
    correction = learned((alone(0.5), 0.1), rounds=9)
    assert correction.expected(alone(0.5)) == 0.5
    for _ in range(99):
        correction.learn(alone(0.4), 0.4, 60.0)
    assert correction.expected(alone(0.5)) == 1.5


ROWS = {
    "a line that takes twice as long": ([(queued(1.0), 2.0)], queued(0.3), 0.6),
    "… says nothing of who finds nobody": ([(queued(1.0), 2.0)], alone(0.3), 0.3),
    "… nor of another kind of worker": ([(queued(1.0), 2.0)], queued(0.3, GPU), 0.3),
    "one that is faster than it was said": ([(queued(1.0), 0.8)], queued(0.3), 0.24),
    "what all take beside is no part of the ratio": ([(alone(0.1), 0.2), (queued(1.0), 2.1)], queued(0.5), 1.1),
    "what cannot be is bounded": ([(queued(1.0), 50.0)], queued(0.5), 0.5 * MAX_QUEUE_RATIO),
    "kinds are told apart": ([(queued(1.0), 3.0), (queued(1.0, GPU), 1.0)], queued(0.5, GPU), 0.5),
}


@pytest.mark.parametrize("row", ROWS)
def test_what_lines_take_longer_is_a_ratio_for_each_kind_of_worker(row: str) -> None:
    times, forecast, expected = ROWS[row]
    assert learned(*times).expected(forecast) == pytest.approx(expected)


def test_a_ratio_is_used_when_a_few_have_told_it_and_forgotten_by_newer_ones() -> None:
    few = learned((queued(1.0), 3.0), rounds=MIN_QUEUE_SAMPLES - 1)
    assert few.expected(queued(1.0)) == 1.0
    few.learn(queued(1.0), 1.0, 3.0)
    assert few.expected(queued(1.0)) == pytest.approx(3.0)
    for _ in range(QUEUE_WINDOW):
        few.learn(queued(1.0), 3.0, 1.0)
    assert few.expected(queued(1.0)) == pytest.approx(1.0)


def test_how_far_to_trust_is_learned_and_mistrust_wears_off() -> None:
    correction = FirstTokenCorrection()
    for number in range(60):
        correction.learn(alone(2.0), 2.0, 4.0 if number % 10 == 0 else 2.1)
    for _ in range(60):
        correction.learn(queued(2.0), 2.0, 4.1)
    assert correction.margin == pytest.approx(2.05) and correction.expected(alone(1.0)) == pytest.approx(1.1)
    assert correction.expected(queued(1.0)) == pytest.approx(2.1)
    for _ in range(200):
        correction.refused()
    assert correction.margin == MIN_MARGIN, "nobody who is refused could teach it otherwise"
    assert correction.expected(alone(1.0)) < 1.02 and correction.expected(queued(1.0)) < 1.05


def test_costs_that_few_steps_have_confirmed_teach_no_correction() -> None:
    new = Forecast(CPU, 2.0, 1.0, cost_steps=3)
    correction = learned((new, 8.0), rounds=60)
    assert correction.expected(new) == 2.0 and correction.margin == FirstTokenCorrection().margin
