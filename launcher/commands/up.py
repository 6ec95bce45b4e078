"""Runs all services on this host with one command (`baton up`), until a stop signal."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from contracts.errors import BatonError, ConfigError
from infra.cli import parse
from infra.network.listening import http_url
from launcher import greeting
from launcher.checking.settings import check_settings, checked_port, with_absolute_key_paths
from launcher.devices.gpus import checked_gpus
from launcher.devices.workers_of_host import workers_of_host
from launcher.host.processes import OPERATOR_KEY_FILE, Processes, environment, host_deployment
from launcher.host.redis_server import redis_service
from launcher.host.secret_files import make_operator_key, secret_path
from launcher.host.service_manager import notify
from launcher.host.signals import Signals
from launcher.host.supervisor import StartFailed, StopAsked, Supervisor
from launcher.instance.instances import Instance, Record
from launcher.instance.log_file import LogFile
from launcher.instance.run_directory import run_directory
from launcher.instance.state_directory import new_log
from launcher.options import ROOT, RayOptions, UpConfig
from launcher.ray_process import hand_over
from launcher.refusal import refused
from launcher.stages import StageDisplay


def up(arguments: Sequence[str]) -> int:
    """Runs an instance. Returns the exit status: 0 stopped by a signal, 1 failed, 2 bad input."""
    stages = StageDisplay()
    try:
        asked = parse(UpConfig, arguments, "baton up", os.environ)
        if asked.on == "ray":
            return hand_over("up", arguments)
        checked = check(asked)
        config = checked.config
        log = new_log(config.log_bytes, config.log_files, stages.say, config.log_format)
    except BatonError as error:
        return refused(error)
    for note in checked.notes:
        stages.say(note)
    if open_to_all := greeting.open_to_all(config):
        stages.say(open_to_all)
    with log, ExitStack() as stack:
        signals = stack.enter_context(Signals().installed())
        try:
            run = stack.enter_context(run_directory())
        except ConfigError as error:
            return refused(error)
        return _run(checked, run, log, stages, signals)


class CheckedUp(NamedTuple):
    """Checked options, with a port and the numbers of workers decided."""

    config: UpConfig
    directory: Path | None  # the model's; None for a hub id
    numa_nodes: tuple[int, ...]  # among which the workers of each role are dealt; none: workers take all nodes
    notes: list[str]  # sentences about the workers


def check(config: UpConfig) -> CheckedUp:
    """Checks the options before a service starts, the cheapest checks first.

    Raises a `BatonError` that names the option and its value.
    """
    _refuse_ray_options(config.ray)
    port = checked_port(config)
    gpus = checked_gpus(config.device)
    directory = check_settings(config)
    decided, numa_nodes, notes = workers_of_host(with_absolute_key_paths(config), directory, gpus)
    return CheckedUp(replace(decided, port=port), directory, numa_nodes, notes)


def _refuse_ray_options(given: RayOptions) -> None:
    """Raises `ConfigError` for the first option of a Ray cluster that is not as by default."""
    by_default = RayOptions()
    for name in RayOptions.__struct_fields__:
        if (value := getattr(given, name)) != getattr(by_default, name):
            why = "on one host the numbers of workers stay" if name == "autoscale" else "services run on this host"
            shown = str(value).lower() if isinstance(value, bool) else value
            raise ConfigError(name, shown, f"{why}; --on ray runs them on a Ray cluster")


def _run(checked: CheckedUp, run: Path, log: LogFile, stages: StageDisplay, signals: Signals) -> int:
    config, directory = checked.config, checked.directory
    model = str(directory or config.model)
    began = time.monotonic()
    with Record(_instance(config, model, log.path), stages.say) as record:
        supervisor = Supervisor(
            ROOT,
            environment(os.environ, ROOT, run),
            log,
            stages,
            signals,
            config.silent_seconds,
            lambda services: record.change(services=services),
            config.log_format,
        )
        try:
            stages.show("log", str(log.path))
            redis = config.redis
            if not redis:
                (server,) = host_deployment(config).of("redis")
                service, redis = redis_service(run, server.max_memory)
                supervisor.start([service])
            key = make_operator_key(config, run)
            processes = Processes(config, run, model, redis, secret_path(config, run), checked.numa_nodes)
            supervisor.start([*processes.workers(), *processes.gateways(), *processes.dashboard()])
            seconds = time.monotonic() - began
            stages.say(greeting.text(config, record.instance.url, directory, seconds, log.path, key))
            record.change(phase="running", key_file=str(run / OPERATOR_KEY_FILE) if key else "")
            notify("READY=1")
            supervisor.watch(processes.idle_watch(time.monotonic()))
        except StopAsked:
            pass
        except (StartFailed, BatonError, OSError) as failure:  # such as a full disk, while the start writes its files
            stages.settle()
            with suppress(OSError):  # the terminal may be gone
                print(f"error: {failure} (log: {log.path})", file=sys.stderr, flush=True)
            return 1
        finally:
            record.change(phase="stopping")
            notify("STOPPING=1")
            stages.show("stopping", "all services")
            supervisor.stop(host_deployment(config).stop_order())
            stages.show("stopping", "done")
            stages.settle()
    return 0


def _instance(config: UpConfig, model: str, log: Path) -> Instance:
    secure = bool(config.tls_cert)
    dashboard = http_url(config.host, config.dashboard_port, secure) if config.dashboard_port else ""
    url = http_url(config.host, config.port, secure)
    return Instance(
        url, os.getpid(), model, time.time(), str(log), cert=config.tls_cert, dashboard=dashboard, phase="starting"
    )
