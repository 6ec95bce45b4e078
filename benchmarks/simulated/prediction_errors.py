"""Measures how far predictions of first tokens are off: `python -m benchmarks.simulated.prediction_errors`.

The router that predicts is the same, simulated and real. In a simulation with the steps' true costs nothing is unknown
but what comes after a prediction; `--noise` makes each step longer or shorter by up to that share. With `--real DIR`
the first load is sent to real services whose engines sleep for the same costs, and simulated with the costs that these
have learned; both reports are left in DIR for `./baton bench --compare`.
"""

import argparse
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.processes.children import exit_status
from benchmarks.report import head, row
from benchmarks.simulated.against_real import (
    ENGINE_OPTIONS,
    SLEEPING_DEPLOYMENTS,
    SLEPT_COSTS_S,
    UNSPLIT_SHARE,
    WARM_UP_LOAD,
    WORKERS_BY_DEPLOYMENT,
    serving,
)
from contracts.errors import GatewayError
from gateway.metrics.predictions import Predicted
from launcher.bench.calibration import calibrate
from launcher.bench.options import BenchConfig
from launcher.bench.run import BenchRun
from launcher.simulating.options import SimulateConfig
from launcher.simulating.simulate import simulated_deployment, simulated_report
from launcher.stages import StageDisplay
from pricing.step_costs.steps import StepWork
from simulation.deployment import LinkFigures, SimulatedDeployment, SimulatedDevice
from simulation.simulation import DeploymentSimulation
from workloads.report import Report

PROMPT_TOKENS, OUTPUT_TOKENS = "uniform:300-700", "uniform:20-60"
FULL_RATE_PER_S = 1.6
"""Requests per second that load one worker which computes such prompts fully."""
TTFT_LIMIT_MS, TPOT_LIMIT_MS = 2000.0, 250.0
TOKEN_BYTES, POOL_BLOCKS, BLOCK_TOKENS = 2000, 20_000, 16
LINK_FIGURES = LinkFigures(10e9, 1e-4)
LOAD_FACTORS = (0.35, 0.7, 1.0, 1.5, 2.0)
COLUMN_TITLES = (
    "deployment",
    "load",
    "steps vary by",
    "requests",
    "TTFT p50 ms",
    "good",
    "median error of predicted TTFT",
)


class _Facts(Struct):
    predicted: Predicted


class _Stats(Struct):
    gateway: _Facts


def load(deployment: str, factor: float, seconds: float) -> BenchConfig:
    prefill, decode, _ = WORKERS_BY_DEPLOYMENT[deployment]
    return BenchConfig(
        rate=factor * FULL_RATE_PER_S * (prefill or decode * UNSPLIT_SHARE),
        seconds=seconds,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        slo_ttft_ms=TTFT_LIMIT_MS,
        slo_tpot_ms=TPOT_LIMIT_MS,
        warm_up=0,
        seed=7,
    )


def steps_of(noise: float) -> Callable[[StepWork], float]:
    """Returns the seconds of a step, which differ from the costs by up to the share `noise`."""
    chance = random.Random(5)
    return lambda work: SLEPT_COSTS_S.seconds(work) * chance.uniform(1 - noise, 1 + noise)


def simulated(deployment: str, noise: float) -> SimulatedDeployment:
    prefill, decode, _ = WORKERS_BY_DEPLOYMENT[deployment]
    device = SimulatedDevice(
        name="sleeper",
        seconds=steps_of(noise),
        costs=SLEPT_COSTS_S,
        token_bytes=TOKEN_BYTES,
        blocks=POOL_BLOCKS,
        block_tokens=BLOCK_TOKENS,
        step_tokens=ENGINE_OPTIONS.max_batch_tokens,
        step_target_s=ENGINE_OPTIONS.step_ms / 1000,
    )
    return SimulatedDeployment(
        prefill=prefill, decode=decode, device=device, prefill_device=device, link=LINK_FIGURES, repeats=1
    )


def simulate(name: str, factor: float, seconds: float, noise: float) -> None:
    simulation = DeploymentSimulation(simulated(name, noise))
    report = simulated_report(simulated_load(name, load(name, factor, seconds)), simulation)
    show(f"{name}", factor, f"{noise:.0%}", report, simulation.gateway.predicted())


def simulated_load(name: str, config: BenchConfig, costs: str = "") -> SimulateConfig:
    given = {each: getattr(config, each) for each in SimulateConfig.__struct_fields__ if hasattr(config, each)}
    prefill, decode, _ = WORKERS_BY_DEPLOYMENT[name]
    return SimulateConfig(**{**given, "prefill": prefill, "decode": decode, "costs": costs})


def show(name: str, factor: float, noise: str, report: Report, predicted: Predicted) -> None:
    figures = report.requests, f"{report.ttft_ms.p50:.0f}", report.good, f"{predicted.median_error:.1%}"
    print(row(name, factor, noise, *figures), flush=True)


def measure(name: str, factor: float, seconds: float, directory: Path, stages: StageDisplay) -> None:
    """Raises `BatonError`."""
    config = load(name, factor, seconds)
    with serving(name) as endpoint:
        model = endpoint.client().model()
        BenchRun(endpoint, model, stages).load(WARM_UP_LOAD)
        report = BenchRun(endpoint, model, stages).load(config)
        try:
            told = msgspec.json.decode(endpoint.client().get("/stats"), type=_Stats).gateway.predicted
        except msgspec.DecodeError as error:
            raise GatewayError(f"/stats tells no predictions: {error}") from None
        costs = calibrate(endpoint, WARM_UP_LOAD, model)
    stages.settle()
    show(f"{name}, real", factor, "", report, told)
    (directory / "costs.json").write_bytes(msgspec.json.encode(costs))
    (directory / "real.json").write_bytes(msgspec.json.encode(report))
    again = simulated_load(name, config, str(directory / "costs.json"))
    simulation = DeploymentSimulation(simulated_deployment(again))
    report = simulated_report(again, simulation)
    show(f"{name}, simulated by its costs", factor, "", report, simulation.gateway.predicted())
    (directory / "simulated.json").write_bytes(msgspec.json.encode(report))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated.prediction_errors", description=__doc__)
    parser.add_argument("--deployment", choices=SLEEPING_DEPLOYMENTS, default="2P2D")
    parser.add_argument("--load", type=float, nargs="+", default=LOAD_FACTORS, help="multiples of the full rate")
    parser.add_argument("--noise", type=float, nargs="+", default=(0.0, 0.2), help="shares by which steps vary")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load")
    parser.add_argument("--real", type=Path, metavar="DIR", help="measures the first load; for its reports")
    given = parser.parse_args()

    def work(stages: StageDisplay) -> None:
        print(head(*COLUMN_TITLES), flush=True)
        if given.real:
            given.real.mkdir(exist_ok=True)
            measure(given.deployment, given.load[0], given.seconds, given.real, stages)
            return
        for factor in given.load:
            for noise in given.noise:
                simulate(given.deployment, factor, given.seconds, noise)

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
