"""Decode steps of one batch as one event: fewer events, and nearly the same figures."""

import pytest

from engine.plan import StepPlan
from pricing.routes.backlog import Backlog
from pricing.step_costs.steps import StepWork
from simulation.repeated_steps import RepeatedSteps
from simulation.simulation import DeploymentSimulation
from tests.simulation.device import DEVICE, deployment, report, requests


@pytest.mark.parametrize(("prefill", "decode", "rate"), [(0, 1, 6.0), (0, 3, 12.0), (1, 1, 6.0)])
def test_the_error_is_below_a_thousandth(prefill: int, decode: int, rate: float) -> None:
    """Of mean TTFT, TPOT and good requests, over three seeds."""
    sums, actions = [], []
    for repeats in (1, 256):
        simulations = [DeploymentSimulation(deployment(prefill, decode, repeats=repeats)) for _ in range(3)]
        reports = [report(each.run(requests(rate, 15.0, seed))) for seed, each in enumerate(simulations)]
        for each in simulations:
            each.check_conservation()
        ttft, tpot = sum(each.ttft_ms.mean for each in reports), sum(each.tpot_ms.mean for each in reports)
        sums.append([ttft, tpot, sum(each.good for each in reports)])
        actions.append(sum(each.timeline.actions for each in simulations))
    assert sums[1] == pytest.approx(sums[0], rel=0.001)
    assert actions[1] < 0.7 * actions[0]


def test_an_event_ends_it_behind_the_running_step() -> None:
    seconds = DEVICE.costs.seconds
    alone = [seconds(StepWork(sequences=2, context=1000 + 2 * step)) for step in range(10)]
    ends = [5.0 + sum(alone[: step + 1]) for step in range(10)]
    steps = RepeatedSteps(StepPlan(1, []), StepWork(sequences=2, context=1000), 10, 5.0, DEVICE)
    assert steps.ends == pytest.approx(ends[9]) and steps.busy_s == pytest.approx(sum(alone))
    assert steps.cut(ends[1] + 0.5 * alone[2]) and steps.count == 3
    assert not steps.cut(ends[1] + 0.9 * alone[2]) and steps.count == 3
    assert steps.ends == pytest.approx(ends[2])
    assert steps.cut(5.0) and steps.ends == pytest.approx(ends[0])


def test_a_gateway_that_asks_meanwhile_hears_of_the_steps_that_have_ended() -> None:
    steps = RepeatedSteps(StepPlan(1, []), StepWork(sequences=2, context=1000), 10, 5.0, DEVICE)
    first, told = DEVICE.costs.seconds(steps.work), Backlog(sequences=2, context=1000, age_ms=1.0)
    assert steps.shown(told, 5.0 + 0.9 * first) == told
    later = steps.shown(told, 5.0 + 3.5 * first)
    assert later.context == 1006 and later.age_ms == pytest.approx(500 * first, rel=0.01)
