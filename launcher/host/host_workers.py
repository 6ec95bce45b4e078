"""Runs the workers of this host under one supervisor (`baton run workers`), as a container of compose.yaml does."""

import os
import sys
from pathlib import Path

from msgspec.structs import replace

from contracts.errors import BatonError
from infra.cli import parse_or_exit
from infra.process.status import StatusFile
from launcher.checking.model_directory import checked
from launcher.deployment import Deployment, Locations, worker_services
from launcher.devices.gpus import checked_gpus
from launcher.devices.workers_of_host import workers_of_host
from launcher.host.process import READY_STAGE
from launcher.host.processes import environment, with_absolute_engine_paths, worker_processes
from launcher.host.signals import Signals
from launcher.host.supervisor import StartFailed, Supervisor
from launcher.instance.instances import ServiceState
from launcher.instance.log_file import OutputLog
from launcher.instance.run_directory import run_directory
from launcher.options import ROOT, HostWorkersConfig
from launcher.refusal import refused
from launcher.stages import StageDisplay


def main() -> int:
    """Runs the workers until a stop signal. Returns the exit status: 0 stopped, 1 failed, 2 bad input."""
    config = parse_or_exit(HostWorkersConfig, "launcher.host.host_workers")
    stages = StageDisplay()
    try:
        gpus = checked_gpus(config.device)
        directory = checked(config.model)
        decided, numa_nodes, notes = workers_of_host(config, directory, gpus)
        for note in notes:
            stages.say(note)
        config = replace(decided, engine=with_absolute_engine_paths(decided.engine))
        with Signals().installed() as signals, run_directory() as run:
            return _run(config, str(directory or config.model), run, stages, signals, numa_nodes)
    except BatonError as error:
        return refused(error)


def _run(
    config: HostWorkersConfig,
    model: str,
    run: Path,
    stages: StageDisplay,
    signals: Signals,
    numa_nodes: tuple[int, ...],
) -> int:
    status = StatusFile(config.status_file)
    status.report("starting")  # an earlier life of a container may have left its last status
    secret = str(Path(config.store.secret_file).absolute()) if config.store.secret_file else ""
    deployment = Deployment(tuple(worker_services(config)))
    place = Locations(redis=config.store.redis, model=model, secret_file=secret, worker=config.place)
    supervisor = Supervisor(
        ROOT,
        environment(os.environ, ROOT, run),
        OutputLog(),
        stages,
        signals,
        config.silent_seconds,
        lambda states: report(status, states),
        config.log_format,
    )
    try:
        # One worker that cannot start, for example on a broken GPU, must not keep the others from serving.
        share = config.gpu_memory_utilization
        supervisor.start_without_waiting(worker_processes(deployment, config.device, place, run, share, numa_nodes))
        supervisor.watch()
    except StartFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    finally:
        supervisor.stop(deployment.stop_order())
    return 0


def report(status: StatusFile, states: tuple[ServiceState, ...]) -> None:
    """Writes the status of all workers together: ready when each worker is ready."""
    ready = sum(state.stage == READY_STAGE for state in states)
    if ready == len(states):
        status.ready("")
    else:
        status.report(f"{ready} of {len(states)} workers are ready")


if __name__ == "__main__":
    raise SystemExit(main())
