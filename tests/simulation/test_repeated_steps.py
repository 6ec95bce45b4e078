"""Decode steps of one batch as one event: fewer events, and the same answers."""

import random
from itertools import takewhile

import pytest
from msgspec import structs

from engine.plan import StepPlan
from pricing.roofline.capacity import Capacity
from pricing.roofline.gpu_rates import GPU_RATES
from pricing.roofline.gpu_step_time import ModelShape
from pricing.step_costs.steps import StepWork
from simulation.deployment import SimulatedDeployment, SimulatedDevice
from simulation.repeated_steps import RepeatedSteps
from simulation.roofline import roofline_device
from simulation.simulation import DeploymentSimulation, SimulatedDeath
from tests.simulation.device import DEVICE
from workloads.arrivals import Arrivals
from workloads.lengths import Lengths
from workloads.request import TimedRequest, Workload, timed

SHAPE = ModelShape(parameters=8e9, weights_bytes=16e9, token_bytes=131072, pair_width=2 * 32 * 128 * 32, launches=300)
ROOFLINE = roofline_device("H100", Capacity(SHAPE, GPU_RATES["H100"], 0.9), step_tokens=2048)
UNEVEN = structs.replace(DEVICE.costs, step=0.010317, prompt_token=1.0173e-4)
"""Costs that leave no whole number of tokens to a step, which rounding could decide."""
WORKERS = structs.replace(DEVICE, costs=UNEVEN, seconds=UNEVEN.seconds)


def load(device: SimulatedDevice, workers: int, seed: int) -> list[TimedRequest]:
    chance = random.Random(seed)
    rate = workers * (chance.uniform(2, 5) if device.name == "test" else chance.uniform(8, 20))
    workload = Workload(Lengths(50, 1500), Lengths(5, 120), chance.choice([0, 300]))
    return list(timed(takewhile(lambda at: at < 4.0, Arrivals(rate).times(chance)), workload.requests(chance), 1 << 20))


@pytest.mark.parametrize(
    ("prefill", "decode", "device", "tokens", "pause_s"),
    [
        (0, 2, ROOFLINE, 400_000, 0.0),
        (0, 3, ROOFLINE, 8_000, 0.002),  # sequences are preempted
        (2, 2, ROOFLINE, 20_000, 0.0),  # blocks are evicted from the cache
        (0, 4, WORKERS, 20_000, 0.0),
        (1, 2, WORKERS, 8_000, 0.0),
    ],
)
def test_every_answer_takes_as_long_as_from_single_steps(
    prefill: int, decode: int, device: SimulatedDevice, tokens: int, pause_s: float
) -> None:
    """To the microsecond, though workers learn what steps cost, and a gateway goes by what they tell, and one dies."""
    device = structs.replace(device, pause_s=pause_s).with_pool(tokens, 16)
    coming = load(device, decode, seed=decode)
    answers, actions = [], []
    for repeats in (1, 256):
        deployment = SimulatedDeployment(prefill=prefill, decode=decode, device=device, repeats=repeats)
        simulation = DeploymentSimulation(deployment)
        outcomes = simulation.run(coming, [SimulatedDeath("d1", 2.5)])
        simulation.check_conservation()
        answers.append([[each.sent_s, each.ended_s, each.timings and each.timings.ttft_ms] for each in outcomes])
        actions.append(simulation.timeline.actions)
    assert answers[1] == [pytest.approx(each, abs=1e-6) for each in answers[0]]
    assert actions[1] < 0.9 * actions[0]


def test_an_event_ends_it_behind_the_running_step() -> None:
    seconds = DEVICE.costs.seconds
    alone = [seconds(StepWork(sequences=2, context=1000 + 2 * step)) for step in range(10)]
    ends = [5.0 + sum(alone[: step + 1]) for step in range(10)]
    steps = RepeatedSteps(StepPlan(1, []), StepWork(sequences=2, context=1000), 10, 5.0, DEVICE)
    assert steps.ends == pytest.approx(ends[9]) and steps.busy_s == pytest.approx(sum(alone))
    assert steps.ended(ends[0] + 0.5 * alone[1]) == 1
    assert steps.cut(ends[1] + 0.5 * alone[2]) and steps.count == 3
    assert not steps.cut(ends[1] + 0.9 * alone[2]) and steps.count == 3
    assert steps.ends == pytest.approx(ends[2])
    assert steps.cut(5.0) and steps.ends == pytest.approx(ends[0])


def test_each_step_is_told_once() -> None:
    steps = RepeatedSteps(StepPlan(1, []), StepWork(sequences=2, context=1000), 10, 5.0, DEVICE)
    told = [steps.untold(3), steps.untold(3), steps.untold(10)]
    assert [(work.context, len(durations)) for work, durations in told] == [(1000, 3), (1006, 0), (1006, 7)]
    alone = [DEVICE.costs.seconds(StepWork(sequences=2, context=1000 + 2 * step)) for step in range(10)]
    assert [*told[0][1], *told[2][1]] == pytest.approx(alone)


def test_the_result_of_several_steps_waits_for_the_last_pause() -> None:
    paused = structs.replace(DEVICE, pause_s=0.001)
    first = DEVICE.costs.seconds(StepWork(sequences=2, context=1000))
    steps = RepeatedSteps(StepPlan(1, []), StepWork(sequences=2, context=1000), 2, 5.0, paused)
    assert steps.due == steps.next_at == pytest.approx(steps.ends + 0.001)
    assert steps.cut(5.0) and steps.due == steps.ends == pytest.approx(5.0 + first)
