"""Predicted times to first token are compared with measured ones, and learn what requests take beside and in lines."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.reports.predictions import KNOWN, LEAST_SURE, LINE, MOST_RATIO, Forecast, Predictions
from pricing.candidate import WorkerKind

CPU, GPU = WorkerKind("prefill", "c", "cpu"), WorkerKind("prefill", "c", "cuda")


def alone(seconds: float, kind: WorkerKind = CPU) -> Forecast:
    """Nobody is before it."""
    return Forecast(kind, seconds, seconds)


def queued(seconds: float, kind: WorkerKind = CPU) -> Forecast:
    """It stands in a line, half of which it is itself."""
    return Forecast(kind, seconds, seconds / 2)


def learned(*times: tuple[Forecast, float], rounds: int = 20) -> Predictions:
    """Makes predictions that have seen each forecast's first token after so many seconds, several times."""
    predictions = Predictions("m", CollectorRegistry())
    for _ in range(rounds):
        for forecast, measured in times:
            predictions.learn(forecast, predictions.expected(forecast), 0.0, measured)
    return predictions


def test_what_requests_take_beside_is_learned_and_the_error_is_told() -> None:
    registry = CollectorRegistry()
    predictions = Predictions("m", registry)
    for number in range(40):
        costs = 0.1 + 0.01 * number
        late = 2.0 if number % 10 == 9 else 0.0  # one that a fault has held up
        predictions.learn(alone(costs), predictions.expected(alone(costs)), 0.002, 0.002 + costs + 0.05 + late)
    assert predictions.expected(alone(1.0)) == pytest.approx(1.05)
    told = predictions.told()
    assert told.requests == 40 and told.beside_ms == pytest.approx(50.0) and told.median_error < 0.01
    page = generate_latest(registry).decode()
    assert 'baton:ttft_prediction_error_ratio_count{model_name="m"} 40.0' in page
    assert 'baton:ttft_prediction_error_median{model_name="m"} 0.0' in page or told.median_error > 0


def test_what_is_added_is_bounded_and_never_taken_away() -> None:
    predictions = learned((alone(0.5), 0.1), rounds=9)
    assert predictions.expected(alone(0.5)) == 0.5 and predictions.told().median_error == pytest.approx(4.0)
    for _ in range(99):
        predictions.learn(alone(0.4), 0.4, 0.0, 60.0)
    assert predictions.expected(alone(0.5)) == 1.5


ROWS = {
    "a line that takes twice as long": ([(queued(1.0), 2.0)], queued(0.3), 0.6),
    "… says nothing of who finds nobody": ([(queued(1.0), 2.0)], alone(0.3), 0.3),
    "… nor of another kind of worker": ([(queued(1.0), 2.0)], queued(0.3, GPU), 0.3),
    "one that is faster than it was said": ([(queued(1.0), 0.8)], queued(0.3), 0.24),
    "what all take beside is no part of the ratio": ([(alone(0.1), 0.2), (queued(1.0), 2.1)], queued(0.5), 1.1),
    "what cannot be is bounded": ([(queued(1.0), 50.0)], queued(0.5), 0.5 * MOST_RATIO),
    "kinds are told apart": ([(queued(1.0), 3.0), (queued(1.0, GPU), 1.0)], queued(0.5, GPU), 0.5),
}


@pytest.mark.parametrize("row", ROWS)
def test_what_lines_take_longer_is_a_ratio_for_each_kind_of_worker(row: str) -> None:
    times, forecast, expected = ROWS[row]
    assert learned(*times).expected(forecast) == pytest.approx(expected)


def test_a_ratio_is_used_when_a_few_have_told_it_and_forgotten_by_newer_ones() -> None:
    few = learned((queued(1.0), 3.0), rounds=KNOWN - 1)
    assert few.expected(queued(1.0)) == 1.0
    few.learn(queued(1.0), 1.0, 0.0, 3.0)
    assert few.expected(queued(1.0)) == pytest.approx(3.0)
    for _ in range(LINE):
        few.learn(queued(1.0), 3.0, 0.0, 1.0)
    assert few.expected(queued(1.0)) == pytest.approx(1.0)


def test_how_far_to_trust_is_learned_and_mistrust_wears_off() -> None:
    predictions = Predictions("m", CollectorRegistry())
    for number in range(60):
        predictions.learn(alone(2.0), 2.0, 0.0, 4.0 if number % 10 == 0 else 2.1)
    for _ in range(60):
        predictions.learn(queued(2.0), 2.0, 0.0, 4.1)
    assert predictions.sure == pytest.approx(2.05) and predictions.expected(alone(1.0)) == pytest.approx(1.1)
    assert predictions.expected(queued(1.0)) == pytest.approx(2.1)
    for _ in range(200):
        predictions.refused()
    assert predictions.sure == LEAST_SURE, "nobody who is refused could teach it otherwise"
    assert predictions.expected(alone(1.0)) < 1.02 and predictions.expected(queued(1.0)) < 1.05
