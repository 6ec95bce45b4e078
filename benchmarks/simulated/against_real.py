"""Compares simulated with real deployments: `python -m benchmarks.simulated.against_real`.

Real services, sockets and clients serve real loads. In most deployments only the layers' computation is a sleep of the
same length, so that many workers run on few cores; workers of 135M compute a model of 135M parameters, each on a core.
Each load is then simulated with the step costs that these workers have learned, and with nothing else from the
measurement. A load lasts `--seconds`, or longer until `--requests` have come: a p90 of three requests says nothing.
With `--directory DIR` reports are kept there, and set-ups whose reports are there are not measured again; with
`--earlier DIR` the real figures are also compared with those of an earlier run, since no simulation can be nearer to
them than they are to themselves.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, cycle
from math import ceil
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from benchmarks.models.random_model import make
from benchmarks.processes.children import exit_status
from benchmarks.processes.split_system import split_system
from benchmarks.report import head, row
from infra.config.engine import EngineOptions
from launcher.bench.calibration import calibrate, workers_of
from launcher.bench.options import BenchConfig
from launcher.bench.run import BenchRun
from launcher.instance.endpoint import ClientEndpoint
from launcher.simulating.options import SimulateConfig
from launcher.simulating.simulate import simulated_deployment, simulated_report
from launcher.stages import StageDisplay
from pricing.step_costs.steps import StepCosts
from simulation.simulation import DeploymentSimulation
from workloads.report import Report

SLEPT_COSTS_S = StepCosts(step=0.04, prompt_token=5e-4, pair=1e-8, sequence=1e-3, context_token=1e-6)
ENGINE_OPTIONS = EngineOptions(dtype="fp32", kv_memory=256 << 20, max_batch_tokens=512, step_ms=100.0)
COMPUTING_OPTIONS = EngineOptions(dtype="bf16", kv_memory=512 << 20, max_batch_tokens=512, step_ms=100.0)


class WorkerCounts(NamedTuple):
    """Prefill and decode workers of a deployment, and whether their engines compute."""

    prefill: int
    decode: int
    computes: bool = False


WORKERS_BY_DEPLOYMENT = {
    "1P1D": WorkerCounts(1, 1),
    "2P2D": WorkerCounts(2, 2),
    "1 unsplit": WorkerCounts(0, 1),
    "2 unsplit": WorkerCounts(0, 2),
    "135M 1P1D": WorkerCounts(1, 1, computes=True),
    "135M 1 unsplit": WorkerCounts(0, 1, computes=True),
    "135M 2 unsplit": WorkerCounts(0, 2, computes=True),
}
SLEEPING_DEPLOYMENTS = [name for name, workers in WORKERS_BY_DEPLOYMENT.items() if not workers.computes]
FULL_RATE_BY_PROMPTS = {"uniform:60-200": 4.0, "uniform:300-700": 1.6, "uniform:1000-2000": 0.55}
"""Prompt lengths, and requests per second at which they load one worker that computes prompts fully."""
LOAD_SHARES = (0.35, 0.7)
"""Shares of that rate; a worker that also decodes bears less."""
UNSPLIT_SHARE = 0.6
COMPUTING_RATE_BY_PROMPTS = {"uniform:60-200": 2.0, "uniform:300-700": 0.7, "uniform:1000-2000": 0.4}
"""The same of a core with 135M parameters. Nearer to what it bears, costs of 7% more move a simulated TPOT by 75%: the
median of requests of which a half decode beside a prompt."""
OUTPUT_TOKENS_TEXT = "uniform:20-60"
WARM_UP_LOAD = BenchConfig(rate=1.0, seconds=25.0, prompt_tokens="uniform:20-1500", output_tokens="uniform:5-60")
TTFT_LIMIT_MS, COMPUTING_TTFT_LIMIT_MS, TPOT_LIMIT_MS = 1500.0, 4000.0, 100.0
MAX_LOAD_S = 900.0
FIGURE_NAMES = ("TTFT p50", "TTFT p90", "TPOT p50", "TPOT p90", "goodput")
DISTINCT_SHARE = 0.05
"""Difference from which the simulation has to order two set-ups as they are."""


class LoadLength(NamedTuple):
    """Least length of each load."""

    seconds: float
    requests: int


class SetUp(NamedTuple):
    """A deployment and a load on it."""

    deployment: str
    prompts: str
    load: float

    def bench(self, least: LoadLength) -> BenchConfig:
        prefill, decode, computes = WORKERS_BY_DEPLOYMENT[self.deployment]
        full = (COMPUTING_RATE_BY_PROMPTS if computes else FULL_RATE_BY_PROMPTS)[self.prompts]
        rate = self.load * full * (prefill or decode * UNSPLIT_SHARE)
        return BenchConfig(
            rate=rate,
            seconds=MAX_LOAD_S,
            requests=max(least.requests, ceil(rate * least.seconds)),
            prompt_tokens=self.prompts,
            output_tokens=OUTPUT_TOKENS_TEXT,
            slo_ttft_ms=COMPUTING_TTFT_LIMIT_MS if computes else TTFT_LIMIT_MS,
            slo_tpot_ms=TPOT_LIMIT_MS,
            warm_up=0,
            seed=self.seed(),
        )

    def seed(self) -> int:
        """Returns a seed of its own, so that no set-up finds the prompts of another one in a cache."""
        return 100 + 10 * set_ups(self.deployment).index(self)

    def file(self, directory: Path, kind: str) -> Path:
        return directory / f"{self.deployment} {self.prompts.partition(':')[2]} {self.load:g} {kind}.json"


def set_ups(deployment: str) -> list[SetUp]:
    return [SetUp(deployment, prompts, load) for prompts in FULL_RATE_BY_PROMPTS for load in LOAD_SHARES]


class Compared(NamedTuple):
    """The figures of a set-up, in the order of `FIGURE_NAMES`. `simulated`: or measured in an earlier run."""

    set_up: SetUp
    requests: int
    real: list[float]
    simulated: list[float]

    def errors(self) -> list[float]:
        return [abs(there / here - 1) for here, there in zip(self.real, self.simulated, strict=True) if here]


def figures(report: Report) -> list[float]:
    times = (report.ttft_ms.p50, report.ttft_ms.p90, report.tpot_ms.p50, report.tpot_ms.p90)
    return [*times, report.goodput_per_s]


@contextmanager
def serving(deployment: str) -> Iterator[ClientEndpoint]:
    """Starts a deployment, and ends it on exit. Raises `BatonError`."""
    prefill, decode, computes = WORKERS_BY_DEPLOYMENT[deployment]
    costs = msgspec.json.encode(SLEPT_COSTS_S).decode()
    cores = cycle(sorted(os.sched_getaffinity(0)))

    def instead(module: str) -> Sequence[str]:
        if computes:
            return "benchmarks.processes.pinned", str(next(cores)), module
        return "benchmarks.simulated.sleeping_worker", module, costs

    with TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make(model, "135m" if computes else "tiny")
        with split_system(
            str(model),
            Path(folder),
            COMPUTING_OPTIONS if computes else ENGINE_OPTIONS,
            counts=(prefill, decode),
            handoff="auto",
            module=instead,
        ) as system:
            yield ClientEndpoint(system.url, "", "")


def measure(deployment: str, directory: Path, least: LoadLength, stages: StageDisplay) -> None:
    """Measures what is not in the directory yet, and writes it there. Raises `BatonError`."""
    lacking = [each for each in set_ups(deployment) if not each.file(directory, "real").is_file()]
    costs_file = directory / f"{deployment} costs.json"
    if not lacking and costs_file.is_file():
        return
    with serving(deployment) as endpoint:
        model = endpoint.client().model()
        BenchRun(endpoint, model, stages).load(WARM_UP_LOAD)
        before = workers_of(endpoint)
        for number, each in enumerate(lacking, 1):
            config = each.bench(least)
            lasts_s = config.requests / config.rate
            stages.say(
                f"{number} of {len(lacking)}: {' '.join(map(str, each))}, {config.requests} requests, {lasts_s:.0f} s"
            )
            report = BenchRun(endpoint, model, stages).load(config)
            each.file(directory, "real").write_bytes(msgspec.json.encode(report))
        costs = calibrate(endpoint, WARM_UP_LOAD, model, before)
        costs_file.write_bytes(msgspec.json.encode(costs))


def simulate(set_up: SetUp, directory: Path, least: LoadLength) -> Report:
    """Simulates a set-up with the costs that its deployment's workers have learned."""
    prefill, decode, _ = WORKERS_BY_DEPLOYMENT[set_up.deployment]
    given = set_up.bench(least)
    load = {name: getattr(given, name) for name in SimulateConfig.__struct_fields__ if hasattr(given, name)}
    costs = str(directory / f"{set_up.deployment} costs.json")
    config = SimulateConfig(**{**load, "prefill": prefill, "decode": decode, "costs": costs})
    report = simulated_report(config, DeploymentSimulation(simulated_deployment(config)))
    set_up.file(directory, "simulated").write_bytes(msgspec.json.encode(report))
    return report


def compare(deployments: Sequence[str], directory: Path, least: LoadLength, stages: StageDisplay) -> list[Compared]:
    found = []
    for deployment in deployments:
        measure(deployment, directory, least, stages)
        for each in set_ups(deployment):
            real = msgspec.json.decode(each.file(directory, "real").read_bytes(), type=Report)
            found.append(Compared(each, real.requests, figures(real), figures(simulate(each, directory, least))))
    return found


def wrong_orders(found: Sequence[Compared]) -> tuple[int, list[str]]:
    """Counts pairs of set-ups whose real figures differ, and names the pairs that are simulated in another order."""
    distinct, wrong = 0, []
    for at, name in enumerate(FIGURE_NAMES):
        for one, other in combinations(found, 2):
            here, there = sorted((one, other), key=lambda each: each.real[at])
            if here.real[at] and there.real[at] / here.real[at] > 1 + DISTINCT_SHARE:
                distinct += 1
                if here.simulated[at] >= there.simulated[at]:
                    wrong.append(f"{name}: {' '.join(map(str, here.set_up))} < {' '.join(map(str, there.set_up))}")
    return distinct, wrong


def show(found: Sequence[Compared]) -> None:
    print(
        head("set-up", "prompts", "load", "requests", *(f"{name}, real / simulated" for name in FIGURE_NAMES), "error")
    )
    for each in found:
        pairs = [f"{here:.4g} / {there:.4g}" for here, there in zip(each.real, each.simulated, strict=True)]
        print(row(*each.set_up, each.requests, *pairs, f"{max(each.errors()):.1%}"))
    print(f"simulated: {summary(found)}")
    print("\n".join(wrong_orders(found)[1]))


def summary(found: Sequence[Compared]) -> str:
    errors = [error for each in found for error in each.errors()]
    distinct, wrong = wrong_orders(found)
    in_order = distinct - len(wrong)
    return f"mean error {fmean(errors):.1%}, worst {max(errors):.1%}; {in_order} of {distinct} pairs in order"


def measured_before(found: Sequence[Compared], directory: Path) -> list[Compared]:
    """Returns each set-up's real figures beside the real figures of an earlier run, whose reports `directory` has.

    Raises `OSError` for a missing report.
    """
    reports = {each.set_up: each.set_up.file(directory, "real").read_bytes() for each in found}
    return [each._replace(simulated=figures(msgspec.json.decode(reports[each.set_up], type=Report))) for each in found]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated.against_real", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="that each load lasts at least")
    parser.add_argument("--requests", type=int, default=20, help="that each load has at least")
    parser.add_argument(
        "--deployment", choices=sorted(WORKERS_BY_DEPLOYMENT), action="append", help="by default all that sleep"
    )
    parser.add_argument("--directory", type=Path, help="keeps reports")
    parser.add_argument("--earlier", type=Path, help="the --directory of an earlier run of the same loads")
    given = parser.parse_args()

    def work(stages: StageDisplay) -> None:
        with TemporaryDirectory() as folder:
            directory = given.directory or Path(folder)
            directory.mkdir(exist_ok=True)
            least = LoadLength(given.seconds, given.requests)
            found = compare(given.deployment or SLEEPING_DEPLOYMENTS, directory, least, stages)
            stages.settle()
            show(found)
            if given.earlier is not None:
                print(f"an earlier run: {summary(measured_before(found, given.earlier))}")

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
