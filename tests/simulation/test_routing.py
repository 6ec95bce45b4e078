"""The router's choices are worth what they were: a change that costs more than 1% of goodput is seen here."""

import random
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from benchmarks.simulated.mooncake import generate
from launcher.bench.calibration import CalibratedWorker, Calibration
from launcher.simulating.options import SimulateConfig
from launcher.simulating.simulate import simulated_deployment, simulated_report
from pricing.step_costs.steps import StepCosts
from simulation.simulation import DeploymentSimulation
from tests.simulation.device import deployment, report, requests
from workloads.trace import MOONCAKE_BLOCK_TOKENS

KNOWN_GOOD = {(0, 3, 13.5): 800, (1, 2, 17.0): 940, (2, 2, 22.0): 1256}
"""Good requests of three seeds of 20 s each by prefill workers, decode workers and rate, when this was written."""
LOST_SHARE = 0.01
PART_REQUESTS, PART_SPEED, KNOWN_GOOD_OF_PART = 700, 2.5, 649
"""Requests of an hour like Mooncake's, 2.5 times as fast, on 2 prefill and 2 decode workers."""
CALIBRATED_WORKER = CalibratedWorker(
    costs=StepCosts(step=6e-3, prompt_token=1.8e-5, pair=8e-11, sequence=2e-5, context_token=3e-8, most_tokens=8192),
    kv_tokens=400_000,
    token_bytes=1 << 17,
)


@pytest.mark.parametrize(("prefill", "decode", "rate"), KNOWN_GOOD)
def test_goodput_is_what_it_was(prefill: int, decode: int, rate: float) -> None:
    good = 0
    for seed in range(3):
        simulation = DeploymentSimulation(deployment(prefill, decode, repeats=16))
        good += report(simulation.run(requests(rate, 20.0, seed))).good
        simulation.check_conservation()
    assert good >= (1 - LOST_SHARE) * KNOWN_GOOD[prefill, decode, rate]


def test_goodput_on_a_part_of_mooncakes_hour(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_bytes(
        msgspec.json.encode(Calibration(model="", device="", front_ms=1.0, pause_ms=0.0, decode=CALIBRATED_WORKER))
    )
    trace = tmp_path / "hour.jsonl"
    trace.write_bytes(b"\n".join(map(msgspec.json.encode, islice(generate(random.Random(0)), PART_REQUESTS))))
    config = SimulateConfig(
        model="8b",
        costs=str(costs),
        prefill=2,
        decode=2,
        trace=str(trace),
        trace_speed=PART_SPEED,
        block_tokens=MOONCAKE_BLOCK_TOKENS,
        steps_at_once=256,
        slo_ttft_ms=1000.0,
        slo_tpot_ms=30.0,
    )
    found = simulated_report(config, DeploymentSimulation(simulated_deployment(config)))
    assert found.answered == PART_REQUESTS
    assert found.good >= (1 - LOST_SHARE) * KNOWN_GOOD_OF_PART
