"""What a start measures is what a fit begins with: about right where steps are as they are, and never nothing."""

import pytest

from pricing.step_costs.seed import MeasuredStep, seeded
from pricing.step_costs.steps import StepCosts, StepWork, pairs_of


def seed(*measured: MeasuredStep) -> StepCosts:
    return seeded(measured, parameters=135_000_000, weights_bytes=270_000_000, token_bytes=23_040, layers=30)


def test_two_steps_tell_what_a_token_and_a_step_take() -> None:
    costs = seed(MeasuredStep(16, 0.024), MeasuredStep(256, 0.264))
    assert (costs.step, costs.prompt_token, costs.sequence) == pytest.approx((0.008, 0.001, 0.001))
    assert costs.context_token == pytest.approx(0.008 * 23_040 / 270_000_000)
    attention = costs.pair * pairs_of(0, 4096) / (costs.prompt_token * 4096)
    assert 0.4 < attention < 1.2, "as much as the products with the weights at some 4,000 tokens"


@pytest.mark.parametrize(
    "measured",
    [
        (MeasuredStep(16, 0.016),),
        (MeasuredStep(16, 0.020), MeasuredStep(256, 0.018)),  # launches are all that takes time
        (MeasuredStep(16, 0.001), MeasuredStep(256, 0.264)),  # disturbed
    ],
)
def test_every_part_costs_something(measured: tuple[MeasuredStep, ...]) -> None:
    costs = seed(*measured)
    assert min(costs.step, costs.prompt_token, costs.pair, costs.sequence, costs.context_token) > 0
    assert costs.seconds(StepWork(measured[-1].tokens)) < 2 * measured[-1].seconds


def test_without_a_measurement_nothing_is_known() -> None:
    assert not seed().known
