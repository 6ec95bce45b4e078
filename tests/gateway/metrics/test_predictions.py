"""The error of predicted times to first token is reported."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.metrics.predictions import Predictions
from pricing.routes.candidate import WorkerKind
from pricing.routes.correction import Forecast


def test_the_overhead_is_learned_and_the_error_is_reported() -> None:
    registry = CollectorRegistry()
    predictions = Predictions("m", registry)
    for number in range(40):
        costs = 0.1 + 0.01 * number
        forecast = Forecast(WorkerKind("prefill", "c", "cpu"), costs, costs)
        late = 2.0 if number % 10 == 9 else 0.0  # one that a fault has held up
        predictions.learn(forecast, predictions.correction.expected(forecast), 0.002, 0.002 + costs + 0.05 + late)
    assert predictions.correction.expected(forecast._replace(seconds=1.0, alone=1.0)) == pytest.approx(1.05)
    told = predictions.summary()
    assert told.requests == 40 and told.beside_ms == pytest.approx(50.0) and told.median_error < 0.01
    page = generate_latest(registry).decode()
    assert 'baton:ttft_prediction_error_ratio_count{model_name="m"} 40.0' in page
    assert 'baton:ttft_prediction_error_median{model_name="m"} 0.0' in page or told.median_error > 0
