"""The simulated day in small: the policy serves it with fewer workers than stay as they are, and does not flap."""

import random

import pytest

from benchmarks.autoscale.__main__ import KV_BLOCKS, WORKER_COSTS
from benchmarks.autoscale.simulation import Came, Machine, Scaler, Simulation
from benchmarks.autoscale.thresholds import Thresholds
from benchmarks.autoscale.trace import Arrival, Day
from benchmarks.autoscale.workers import Decode, Prefill
from contracts.slo import SLO
from launcher.autoscale.policy import ScalingPolicy
from launcher.autoscale.rules import Bounds, Rules

SECONDS = 3600.0
OBJECTIVE = SLO(2000.0, 100.0)
RULES = Rules({"prefill": Bounds(1, 6), "decode": Bounds(1, 6)}, OBJECTIVE, up=10.0, down=60.0)


def run(scaler: Scaler | None, prefill: int, decode: int, peak: float = 3.0) -> Came:
    simulation = Simulation(Machine(WORKER_COSTS, KV_BLOCKS, 15.0), OBJECTIVE, scaler, prefill, decode)
    return simulation.run(Day(peak, 1, SECONDS).arrivals(), lambda now: None)


def test_the_policy_costs_fewer_workers_than_fixed_ones_and_flaps_less_than_thresholds() -> None:
    policy, thresholds = run(ScalingPolicy(RULES, 0.0), 2, 2), run(Thresholds(RULES), 2, 2)
    for fixed in (run(None, 3, 2), run(None, 2, 3)):  # of as many worker-hours, or more
        assert fixed.worker_seconds > 0.95 * policy.worker_seconds and fixed.good < policy.good
    assert policy.good > 0.95 * policy.requests > 1.2 * thresholds.good
    assert policy.changes < thresholds.changes / 3


def test_a_steady_load_has_few_changes() -> None:
    chance, at, arrivals = random.Random(0), 0.0, list[Arrival]()
    while (at := at + chance.expovariate(2.0)) < SECONDS:
        arrivals.append(Arrival(at, 1000, 200))
    simulation = Simulation(Machine(WORKER_COSTS, KV_BLOCKS, 15.0), OBJECTIVE, ScalingPolicy(RULES, 0.0), 1, 1)
    came = simulation.run(arrivals, lambda now: None)
    assert came.changes <= 6 and came.good > 0.9 * came.requests


def test_simulated_workers_take_the_seconds_of_the_cost_model() -> None:
    prefill = Prefill("p", WORKER_COSTS, KV_BLOCKS, 0.0)
    first = prefill.take(1000, 0.0)
    assert first == pytest.approx(WORKER_COSTS.prompt_seconds(1000, 500500.0))
    assert prefill.take(1000, 0.0) == pytest.approx(2 * first) and prefill.backlog(1.5 * first).tokens == 500
    decode = Decode("d", WORKER_COSTS, KV_BLOCKS, 0.0)
    decode.take(1, 1000, 101, 0.0)
    decode.take(2, 1000, 201, 0.0)
    step = WORKER_COSTS.decode_seconds(2, 2002)
    assert decode.next_end() == pytest.approx(100 * step)
    assert decode.end(100 * step, {1: 1101}) == 1
    assert decode.backlog(100 * step).context == pytest.approx(1101, abs=1)
