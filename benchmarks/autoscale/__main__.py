"""Compares scaling policies on a wave of requests: `python -m benchmarks.autoscale [--gpu B200] [--fixed 4+4,3+3]`.

The deployment is simulated by the code that serves (`simulation/`), on a roofline of the GPU's data sheet. The policy
of `baton up --autoscale` stands beside fixed thresholds and fixed deployments. Good requests meet their objective.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import structs

from benchmarks.autoscale.thresholds import Thresholds
from benchmarks.models.shapes import write_config
from benchmarks.processes.children import exit_status
from benchmarks.report import head, row
from launcher.autoscale.policy import ScalingInput
from launcher.autoscale.rules import parse_rules
from launcher.simulating.features import FeatureOptions
from launcher.simulating.options import SimulateConfig
from launcher.simulating.run import SimulatedClients
from launcher.simulating.simulate import simulated_deployment
from launcher.stages import StageDisplay
from simulation.scaling import SimulatedScaling
from simulation.simulation import DeploymentSimulation

COLUMN_TITLES = "workers", "good requests", "worker-hours", "changes", "TTFT p90, s", "TPOT p90, ms"


def measure(config: SimulateConfig, scaling: SimulatedScaling | None, stages: StageDisplay) -> list[str]:
    """Simulates the wave, and returns the cells of a line. Raises `ConfigError`."""
    simulation = DeploymentSimulation(simulated_deployment(config))
    report = SimulatedClients(config, config.model, simulation, stages).run([], scaling).report
    stages.settle()
    hours = simulation.fleet.paid_s(report.seconds) / 3600
    changes = simulation.scaling.changes if simulation.scaling is not None else 0
    times = f"{report.ttft_ms.p90 / 1000:.2f}", f"{report.tpot_ms.p90:.1f}"
    return [f"{report.good_share:.2%} of {report.requests}", f"{hours:.2f}", str(changes), *times]


def thresholds(config: SimulateConfig) -> SimulatedScaling:
    compared = Thresholds(parse_rules(config.autoscale, config.slo()))
    return SimulatedScaling(
        lambda standing, wanted, now: compared.look(ScalingInput(standing, 0.0, wanted), now), config.start_seconds
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale", description=__doc__)
    parser.add_argument("--peak", type=float, default=24.0, help="requests/s; the wave begins at 1")
    parser.add_argument("--seconds", type=float, default=900.0, help="of the wave")
    parser.add_argument("--autoscale", default="prefill=1:4,decode=1:4,up=10s,down=60s")
    parser.add_argument("--gpu", default="B200", help="kind of GPU of each worker, by its data sheet")
    parser.add_argument("--start", type=float, default=15.0, help="s that a worker takes to start")
    parser.add_argument(
        "--fixed", default="4+4,3+3,2+3,3+2", help="prefill+decode workers of fixed set-ups, with commas"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    def work(stages: StageDisplay) -> None:
        with TemporaryDirectory() as model:
            write_config(Path(model), "llama-3.1-8b")
            config = SimulateConfig(
                model=model,
                gpu=given.gpu,
                features=FeatureOptions(kv_dtype="fp8"),
                rate=1.0,
                peak=given.peak,
                profile="sinusoid",
                period=given.seconds,
                seconds=given.seconds,
                prompt_tokens="8000",
                output_tokens="1000",
                slo_ttft_ms=3000.0,
                slo_tpot_ms=35.0,
                block_tokens=256,
                steps_at_once=64,
                autoscale=given.autoscale,
                start_seconds=given.start,
                seed=given.seed,
            )
            print(head(*COLUMN_TITLES), flush=True)
            print(row("policy", *measure(config, config.scaling(), stages)), flush=True)
            print(row("thresholds", *measure(config, thresholds(config), stages)), flush=True)
            for pair in given.fixed.split(","):
                prefill, decode = map(int, pair.split("+"))
                print(
                    row(pair, *measure(structs.replace(config, prefill=prefill, decode=decode), None, stages)),
                    flush=True,
                )

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
