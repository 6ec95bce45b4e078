"""Shares of a device that steps reach, against steps whose bytes and operations are known."""

import pytest

from pricing.roofline.device_use import DeviceFigures, StepTotals, device_use
from pricing.step_costs.steps import StepCosts, StepWork

FIGURES = DeviceFigures(parameters=1e9, read=3e12, multiply=1e15)


def test_decode_steps_read_weights_and_context_and_memory_binds() -> None:
    totals = StepTotals()
    for _ in range(100):
        totals = totals.and_steps(StepWork(sequences=8, context=8000), (0.001,))
    use = device_use(totals, 0.2, weights_bytes=2_000_000_000, token_bytes=100_000, figures=FIGURES)
    assert use is not None and use.busy == pytest.approx(0.5) and use.binds == "memory"
    assert use.read_share == pytest.approx((2e9 + 8000 * 1e5) / 0.001 / 3e12)


def test_prompts_multiply_and_products_bind() -> None:
    totals = StepTotals().and_steps(StepWork(prompt_tokens=8000), (0.02,))
    use = device_use(totals, 1.0, weights_bytes=2_000_000_000, token_bytes=100_000, figures=FIGURES)
    assert use is not None and use.multiply_share == pytest.approx(2e9 * 8000 / 0.02 / 1e15) and use.binds == "products"


def test_totals_of_a_window_are_differences_and_unknown_limits_give_no_share() -> None:
    before = StepTotals().and_steps(StepWork(sequences=1, context=5), (1.0,))
    after = before.and_steps(StepWork(sequences=2, context=7, rows=3), (0.5,))
    assert after.since(before) == StepTotals(1, 0.5, 5, 7, sequences=2)
    use = device_use(after, 2.0, 10, 1, DeviceFigures())
    assert use is not None and use.read_share is None and use.multiply_share is None and use.binds == ""
    assert device_use(StepTotals(), 2.0, 10, 1, FIGURES) is None


def test_totals_say_by_how_much_all_steps_were_slower_than_costs_say() -> None:
    costs = StepCosts(step=0.01, prompt_token=0.001, pair=1e-7, sequence=0.0005, context_token=3e-6)
    works = [StepWork(300, 45150.0, 2, 800), StepWork(sequences=3, context=1500), StepWork(16, 136.0)]
    totals = StepTotals()
    for work in works:
        totals = totals.and_steps(work, (1.25 * costs.seconds(work),))
    assert totals.over(costs) == pytest.approx(1.25)
    assert totals.and_steps(StepWork(sequences=1, context=9, rows=4), (1.0,)).over(costs) == 1.0, (
        "drafts are not counted"
    )
    assert StepTotals().over(costs) == totals.over(StepCosts()) == 1.0
