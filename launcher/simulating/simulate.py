"""Simulates a deployment under a load (`baton simulate`), and reports what `baton bench` would."""

import sys
from collections.abc import Sequence

from msgspec import structs

from contracts.errors import BatonError
from infra.cli import parse
from infra.config.transfer import TransferConfig
from infra.redis.records import Role
from launcher.bench.calibration import read_calibration
from launcher.bench.rates import sweep, write_single
from launcher.simulating.devices import RooflineWorkers, calibrated_device
from launcher.simulating.options import SimulateConfig
from launcher.simulating.run import SimulatedClients, SimulatedLoad
from launcher.stages import StageDisplay
from launcher.words import BAD_INPUT_STATUS
from simulation.deployment import FRONT_S, LinkFigures, SimulatedDeployment
from simulation.simulation import DeploymentSimulation
from workloads.report import Report
from workloads.table import table

LARGE_FRAME_BYTES = 1 << 28
ROLES: tuple[Role, ...] = ("prefill", "decode")


def simulate(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    stages = StageDisplay(sys.stderr)
    try:
        config = parse(SimulateConfig, arguments, "baton simulate")
        config.check()
        return _run(config, simulated_deployment(config), stages)
    except BatonError as error:
        stages.settle()
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT_STATUS


def _run(config: SimulateConfig, deployment: SimulatedDeployment, stages: StageDisplay) -> int:
    split = f"{config.prefill} prefill and {config.decode} decode workers"
    workers = split if config.prefill else f"{config.decode} unsplit worker{'s' if config.decode > 1 else ''}"
    steps = f"costs of {config.costs}" if config.costs else f"{config.factor:g} x the roofline of {config.gpu}"
    pool = deployment.device.blocks * deployment.device.block_tokens
    gpus = f", {width} GPUs each" if (width := deployment.device.gpus) > 1 else ""
    described = f"simulated: {workers}{gpus}, {pool} tokens of KV each; a step lasts {steps}"
    print(described, flush=True)
    if config.find_goodput or config.sweep:

        def report_at(load: SimulateConfig) -> Report:
            return simulated_report(load, DeploymentSimulation(deployment), stages)

        return sweep(config, report_at, stages.settle, described)
    simulation = DeploymentSimulation(deployment)
    load = simulated_load(config, simulation, stages)
    report = load.report
    stages.settle()
    print("\n".join([*table(report), *(_of_key(name, of_key) for name, of_key in load.of_keys.items())]))
    if simulation.scaling is not None:
        hours = simulation.fleet.paid_s(report.seconds) / 3600
        print(f"workers   {hours:.3g} worker-hours, {simulation.scaling.changes} changes by --autoscale")
    status = write_single(config, report, described)
    if load.error is not None:
        raise load.error
    return status


def _of_key(name: str, found: Report) -> str:
    """Returns the line of an API key, by the objective of the load."""
    refused = sum(found.errors.values())
    times = f"TTFT p90 {found.ttft_ms.p90:.0f} ms, TPOT p90 {found.tpot_ms.p90:.1f} ms"
    return f"key       {name}: {found.requests} requests, {found.good_share:.0%} good, {refused} refused, {times}"


def simulated_report(
    config: SimulateConfig, simulation: DeploymentSimulation, stages: StageDisplay | None = None
) -> Report:
    """Returns the report of the load. Raises `ConfigError` for a trace that cannot be read."""
    load = simulated_load(config, simulation, stages or StageDisplay(sys.stderr))
    if load.error is not None:
        raise load.error
    return load.report


def simulated_load(config: SimulateConfig, simulation: DeploymentSimulation, stages: StageDisplay) -> SimulatedLoad:
    """Runs the load, and shows in `stages` how far it is. Raises `ConfigError` if nothing of a trace can be read."""
    return SimulatedClients(config, config.model or config.costs, simulation, stages).run(
        config.deaths(), config.scaling()
    )


def simulated_deployment(config: SimulateConfig) -> SimulatedDeployment:
    """Raises `ConfigError` for a model or costs that cannot be read, or that leave no room for KV."""
    if config.costs:
        calibration = read_calibration(config.costs, "--costs")
        front_s = calibration.front_ms / 2000
        prefill, decode = (calibrated_device(config, calibration, role) for role in ROLES)
    else:
        front_s, workers = FRONT_S, RooflineWorkers(config)
        gpus = (config.prefill_gpu or config.gpu, config.gpu)
        prefill, decode = (workers.device(role, gpu) for role, gpu in zip(ROLES, gpus, strict=True))
    link = LinkFigures(config.link_gb_per_s * 1e9, config.link_round_trip_ms / 1000)
    return SimulatedDeployment(
        prefill=config.prefill,
        decode=config.decode,
        device=decode,
        prefill_device=prefill,
        link=link,
        transfer=_transfer(link),
        front_s=front_s,
        repeats=config.steps_at_once,
        keys=config.features.keys(),
        objective=config.features.objective(),
    )


def _transfer(link: LinkFigures) -> TransferConfig:
    """Returns settings with large payloads, so few events, if the default window does not limit the link."""
    usual = TransferConfig(frame=16 << 20)
    binds = link.bytes_per_second * (link.round_trip_s + usual.frame / link.bytes_per_second) > usual.window
    return usual if binds else structs.replace(usual, frame=LARGE_FRAME_BYTES, window=2 * LARGE_FRAME_BYTES)
