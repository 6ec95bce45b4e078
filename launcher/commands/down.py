"""Stops an instance on this host (`baton down`), or hands over for a deployment on a Ray cluster."""

import os
import select
import signal
import sys
from collections.abc import Sequence

from contracts.errors import ConfigError
from infra.cli import parse
from launcher.instance.instances import Instance
from launcher.instance.local_instance import local_instance
from launcher.options import DownConfig
from launcher.ray_process import asks_for_ray, hand_over
from launcher.refusal import refusing
from launcher.stages import StageDisplay

NOT_STOPPED = 1  # exit status
MAX_STOP_S = 600.0  # `up` has shorter bounds of its own, of which a drain of minutes is the longest


@refusing
def down(arguments: Sequence[str]) -> int:
    """Tells the instance to stop, as Ctrl-C does. Returns the exit status: 0 ended, 1 still runs, 2 bad input."""
    if asks_for_ray(arguments):
        return hand_over("down", arguments)
    instance = local_instance(parse(DownConfig, arguments, "baton down").url)
    stages = StageDisplay()
    stages.show("stopping", f"{instance.url}, process {instance.pid}")
    if not ended(instance):
        print(f"error: process {instance.pid} still runs after {MAX_STOP_S:.0f} s", file=sys.stderr)
        return NOT_STOPPED
    stages.show("stopping", "done")
    stages.settle()
    return 0


def ended(instance: Instance) -> bool:
    """Sends SIGTERM, and returns whether the process ended in time. Raises `ConfigError` if it is another user's."""
    try:
        process = os.pidfd_open(instance.pid)
    except ProcessLookupError:
        return True
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        return bool(select.select([process], [], [], MAX_STOP_S)[0])
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise ConfigError("--url", instance.url, f"its process {instance.pid} cannot be stopped: {error}") from None
    finally:
        os.close(process)
