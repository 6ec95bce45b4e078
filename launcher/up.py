"""Runs everything on this host with one command (`baton up`), until a signal asks to stop."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from core.cli import parse
from core.errors import BatonError, ConfigError
from core.network.listening import http_url
from launcher import greeting
from launcher.checking.memory import refuse_weights_beyond_memory
from launcher.checking.settings import check_settings, checked_port, with_whole_paths
from launcher.host.gpus import usable_gpus
from launcher.host.own_files import own_key, secret_path
from launcher.host.processes import OWN_KEY, Processes, described, environment
from launcher.host.redis_server import redis_service
from launcher.host.run_directory import run_directory
from launcher.host.signals import Signals
from launcher.host.state_directory import Instance, new_log, record
from launcher.host.supervisor import StartFailed, StopAsked, Supervisor
from launcher.options import ROOT, UpConfig
from launcher.ray_process import hand_over
from launcher.stages import Stages

BAD_INPUT = 2
WHOLE_REQUESTS = (
    "one GPU: decode workers serve whole requests, because a prefill worker beside them would hold the weights a second"
    " time and take turns with them; --prefill 1 splits"
)


def up(arguments: Sequence[str]) -> int:
    """Runs an instance and returns the exit status: 0 stopped as asked, 1 failed, 2 bad input."""
    try:
        asked = parse(UpConfig, arguments, "baton up")
        if asked.on == "ray":
            return hand_over("up", arguments)
        config, directory = check(asked)
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    log, stages = new_log(), Stages()
    if asked.prefill is None and config.prefill == 0:
        stages.say(WHOLE_REQUESTS)
    if open_to_all := greeting.open_to_all(config):
        stages.say(open_to_all)
    with Signals().installed() as signals, run_directory() as run:
        return _run(config, directory, run, log, stages, signals)


def check(config: UpConfig) -> tuple[UpConfig, Path | None]:
    """Refuses what cannot work before anything is started, cheapest first.

    Returns the options with a port in place of 0 and a number of prefill workers, and the model's directory, None for a
    hub id. Raises a `BatonError` that names the option and its value.
    """
    if config.ray.autoscale:
        why = "on one host the numbers of workers stay; --on ray has them follow the load"
        raise ConfigError("--autoscale", config.ray.autoscale, why)
    port = checked_port(config)
    gpus = usable_gpus(config.device)
    directory = check_settings(config)
    config = with_whole_paths(config)
    prefill = (0 if len(gpus) == 1 else 1) if config.prefill is None else config.prefill
    if directory is not None and not gpus:
        refuse_weights_beyond_memory(directory, config.engine, prefill + config.decode)
    return replace(config, port=port, prefill=prefill), directory


def _run(config: UpConfig, directory: Path | None, run: Path, log: Path, stages: Stages, signals: Signals) -> int:
    model = str(directory or config.model)
    began = time.monotonic()
    with log.open("ab") as output:
        supervisor = Supervisor(
            ROOT, environment(os.environ, ROOT, run), output, stages, signals, config.silent_seconds
        )
        try:
            stages.show("log", str(log))
            redis = config.redis
            if not redis:
                service, redis = redis_service(run)
                supervisor.start([service])
            key = own_key(config, run)
            processes = Processes(config, run, model, redis, secret_path(config, run))
            supervisor.start([*processes.workers(), *processes.gateways(), *processes.dashboard()])
            url = http_url(config.host, config.port, bool(config.tls_cert))
            stages.say(greeting.text(config, url, directory, time.monotonic() - began, log, key))
            own = str(run / OWN_KEY) if key else ""
            with record(Instance(url, os.getpid(), model, time.time(), str(log), own, config.tls_cert)):
                supervisor.watch()
        except StopAsked:
            pass
        except (StartFailed, BatonError) as failure:
            stages.settle()
            print(f"error: {failure} (log: {log})", file=sys.stderr, flush=True)
            return 1
        finally:
            stages.show("stopping", "all services")
            supervisor.stop(described(config).stop_order())
            stages.show("stopping", "done")
            stages.settle()
    return 0
