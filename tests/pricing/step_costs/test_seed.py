"""What a start measures is what a fit begins with: about right where steps are as they are, and never nothing."""

from collections.abc import Sequence

import pytest

from pricing.step_costs.seed import MeasuredStep, StepContrast, TimedStep, seeded
from pricing.step_costs.steps import StepCosts, StepWork, pairs_of


def seed(*measured: MeasuredStep, contrasts: Sequence[StepContrast] = ()) -> StepCosts:
    return seeded(measured, 135_000_000, weights_bytes=270_000_000, token_bytes=23_040, layers=30, contrasts=contrasts)


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


def test_pairs_of_steps_tell_what_the_bytes_do_not() -> None:
    """Attention of a CPU takes ten times what reading its KV would; noise may say that more work takes less."""
    prompts = MeasuredStep(16, 0.021), MeasuredStep(256, 0.288)
    lone, batch = StepWork(sequences=1, context=256), StepWork(sequences=8, context=256)
    far = StepContrast(
        "context_token", TimedStep(batch, 0.0158), TimedStep(StepWork(sequences=8, context=8192), 0.0436)
    )
    several = StepContrast("sequence", TimedStep(lone, 0.0125), TimedStep(batch, 0.0158))
    costs = seed(*prompts, contrasts=[far, several])
    assert costs.context_token == pytest.approx(3.5e-6, rel=0.01)
    assert costs.seconds(lone) == pytest.approx(0.0125) and costs.seconds(batch) == pytest.approx(0.0158)
    derived = seed(*prompts)
    assert not costs.told_apart, "a prompt's share of pairs was not measured"
    assert (costs.pair, costs.prompt_token) == (derived.pair, derived.prompt_token), "these were not told apart"
    deep = StepContrast("pair", TimedStep(StepWork(64, 2080), 0.08), TimedStep(StepWork(64, 59_424), 0.108))
    assert seed(*prompts, contrasts=[far, several, deep]).told_apart
    noise = StepContrast("sequence", TimedStep(lone, 0.0158), TimedStep(batch, 0.0125))
    assert seed(*prompts, contrasts=[noise]).sequence == pytest.approx(0.1 * derived.sequence)


def test_without_a_measurement_nothing_is_known() -> None:
    assert not seed().known
