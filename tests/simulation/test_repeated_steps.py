"""Decode steps of one batch as one event: fewer events, and nearly the same figures."""

import pytest

from engine.plan import StepPlan
from pricing.steps import StepWork
from simulation.repeated_steps import RepeatedSteps
from simulation.simulation import DeploymentSimulation
from tests.simulation.device import DEVICE, deployment, report, requests


@pytest.mark.parametrize(("prefill", "decode", "rate"), [(0, 1, 6.0), (0, 2, 8.0), (1, 1, 6.0)])
def test_the_error_is_below_a_hundredth(prefill: int, decode: int, rate: float) -> None:
    """Of mean TTFT, TPOT and good requests, over four seeds."""
    sums, actions = [], []
    for repeats in (1, 16):
        simulations = [DeploymentSimulation(deployment(prefill, decode, repeats=repeats)) for _ in range(4)]
        reports = [report(each.run(requests(rate, 20.0, seed))) for seed, each in enumerate(simulations)]
        for each in simulations:
            each.check_conservation()
        ttft, tpot = sum(each.ttft_ms.mean for each in reports), sum(each.tpot_ms.mean for each in reports)
        sums.append([ttft, tpot, sum(each.good for each in reports)])
        actions.append(sum(each.timeline.actions for each in simulations))
    assert sums[1] == pytest.approx(sums[0], rel=0.01)
    assert actions[1] < 0.7 * actions[0]


def test_an_event_ends_it_behind_the_running_step() -> None:
    seconds = DEVICE.costs.seconds
    work = StepWork(sequences=2, context=1000)
    steps = RepeatedSteps(StepPlan(1, []), work, 10, 5.0, DEVICE)
    each = (seconds(work) + seconds(StepWork(sequences=2, context=1018))) / 2
    assert steps.ends == pytest.approx(5.0 + 10 * each)
    assert steps.cut(5.0 + 2.5 * each) and steps.count == 3
    assert not steps.cut(5.0 + 2.9 * each) and steps.count == 3
    assert steps.cut(5.0) and steps.ends == pytest.approx(5.0 + each)
