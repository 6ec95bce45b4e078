"""Predicted times to the first token are compared with measured ones, and learn what requests take beside."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.reports.predictions import LEAST_SURE, Predictions


def test_what_requests_take_beside_is_learned_and_the_error_is_told() -> None:
    registry = CollectorRegistry()
    predictions = Predictions("m", registry)
    for number in range(40):
        costs = 0.1 + 0.01 * number
        late = 2.0 if number % 10 == 9 else 0.0  # one that a fault has held up
        predictions.learn(costs, predictions.expected(costs), 0.002, 0.002 + costs + 0.05 + late)
    assert predictions.expected(1.0) == pytest.approx(1.05)
    told = predictions.told()
    assert told.requests == 40 and told.beside_ms == pytest.approx(50.0) and told.median_error < 0.01
    page = generate_latest(registry).decode()
    assert 'baton:ttft_prediction_error_ratio_count{model_name="m"} 40.0' in page
    assert 'baton:ttft_prediction_error_median{model_name="m"} 0.0' in page or told.median_error > 0


def test_what_is_added_is_bounded_and_never_taken_away() -> None:
    predictions = Predictions("m", CollectorRegistry())
    for _ in range(9):
        predictions.learn(0.5, 0.5, 0.0, 0.1)
    assert predictions.expected(0.5) == 0.5 and predictions.told().median_error == pytest.approx(4.0)
    for _ in range(99):
        predictions.learn(0.4, 0.4, 0.0, 60.0)
    assert predictions.expected(0.5) == 1.5


def test_how_far_to_trust_is_learned_and_mistrust_wears_off() -> None:
    predictions = Predictions("m", CollectorRegistry())
    for number in range(60):
        predictions.learn(2.0, 2.0, 0.0, 4.0 if number % 10 == 0 else 2.1)
    assert predictions.sure == pytest.approx(2.0) and predictions.expected(1.0) == pytest.approx(2.0)
    for _ in range(200):
        predictions.refused()
    assert predictions.sure == LEAST_SURE, "nobody who is refused could teach it otherwise"
    assert predictions.expected(1.0) < 1.02
    for _ in range(60):
        predictions.learn(0.01, 0.01, 0.0, 0.05)
    assert predictions.expected(1.0) == pytest.approx(1.04), "a backlog says nothing of what all requests take beside"
