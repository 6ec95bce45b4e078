"""Restarts a service of a running instance (`baton restart`): it drains, ends, and is started again."""

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from contracts.errors import ConfigError
from contracts.kinds import Seconds
from infra.cli import parse
from launcher.host.process import READY_STAGE
from launcher.host.supervised_service import UNLOADED_STAGE
from launcher.instance.instances import Instance, ServiceState
from launcher.instance.local_instance import local_instance, service_of
from launcher.options import LocalURL
from launcher.refusal import refusing
from launcher.stages import StageDisplay

NOT_READY = 1  # exit status
POLL_PERIOD_S = 0.2


class RestartConfig(Struct, frozen=True, kw_only=True):
    """Restarts a worker, a gateway or the dashboard: ./baton restart SERVICE [options]. Its requests drain first.

    Example: ./baton restart decode-0
    """

    url: LocalURL = ""
    kill_seconds: Annotated[Seconds, Meta(description="seconds for the service to end; then it is killed")] = 60.0
    start_seconds: Annotated[Seconds, Meta(description="seconds for the new process to be ready")] = 600.0


@refusing
def restart(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 the service is ready again, 1 it is not, 2 bad input."""
    name, options = (arguments[0], arguments[1:]) if arguments and arguments[0][:1] != "-" else ("", arguments)
    config = parse(RestartConfig, options, "baton restart")
    if not name:
        raise ConfigError("SERVICE", None, "is missing: ./baton restart SERVICE; ./baton status lists them")
    instance = local_instance(config.url)
    old = _restartable(instance, name)
    _end(instance, old, config.kill_seconds)
    return 0 if _ready_again(instance, old, config.start_seconds) else NOT_READY


def _restartable(instance: Instance, name: str) -> ServiceState:
    service = service_of(instance, name)
    if name == "redis":
        raise ConfigError("SERVICE", name, "has the jobs of running requests; ./baton down and up restart everything")
    if service.stage == UNLOADED_STAGE:
        raise ConfigError("SERVICE", name, "is unloaded (--idle-unload): the next request starts it")
    if not service.pid:
        raise ConfigError("SERVICE", name, "has died, and is being started again already")
    return service


def _end(instance: Instance, service: ServiceState, seconds: float) -> None:
    """Sends SIGTERM, and SIGKILL to a process that has not ended after `seconds`."""
    try:
        process = os.pidfd_open(service.pid)
    except ProcessLookupError:
        return
    try:
        if _parent(service.pid) != instance.pid:
            return  # the process has ended since it was recorded
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], seconds)[0]:
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _ready_again(instance: Instance, old: ServiceState, seconds: float) -> bool:
    """Shows the stages of the new process until it is ready. Raises `ConfigError` if the instance ends meanwhile."""
    stages, deadline = StageDisplay(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        now = service_of(local_instance(instance.url), old.name)
        if now.restarts > old.restarts:
            stages.show(old.name, now.stage)
            if now.stage == READY_STAGE:
                stages.settle()
                return True
        time.sleep(POLL_PERIOD_S)
    stages.settle()
    print(f"error: {old.name} is not ready after {seconds:g} s; ./baton logs {old.name} has its lines", file=sys.stderr)
    return False
