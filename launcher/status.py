"""Shows this user's instances on this host (`baton status`), or hands over for a deployment on a Ray cluster."""

import sys
import time
from collections.abc import Sequence

from contracts.errors import BatonError
from infra.cli import parse
from launcher.host.instances import Instance, recorded
from launcher.host.process import READY_STAGE, answers
from launcher.options import StatusConfig
from launcher.ray_process import asks_for_ray, hand_over

NOT_READY, NO_INSTANCE = 1, 2  # exit statuses
NO_INSTANCE_HINT = (
    "no instance of this user runs on this host; ./baton up starts one, ./baton status --on ray looks at a Ray cluster"
)
PROBE_TIMEOUT_S = 5.0


def status(arguments: Sequence[str]) -> int:
    """Prints each instance. Returns the exit status: 0 all serve, 1 some do not, 2 no instance."""
    if asks_for_ray(arguments):
        return hand_over("status", arguments)
    try:
        parse(StatusConfig, arguments, "baton status")
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_INSTANCE
    found = recorded()
    if not found:
        print(f"error: {NO_INSTANCE_HINT}", file=sys.stderr)
        return NO_INSTANCE
    served = [serves(instance) for instance in found]
    now = time.time()
    print("\n\n".join(described(instance, ready, now) for instance, ready in zip(found, served, strict=True)))
    return 0 if all(served) else NOT_READY


def serves(instance: Instance) -> bool:
    return instance.phase == "running" and answers(f"{instance.url}/ready", PROBE_TIMEOUT_S)


def described(instance: Instance, ready: bool, now: float) -> str:
    """Formats an instance and a table of its services. `now`: seconds since 1970."""
    phase = READY_STAGE if ready else "not ready" if instance.phase == "running" else instance.phase
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(instance.started))
    lines = [
        f"{phase}, since {began} ({duration(now - instance.started)})",
        f"  endpoint   {instance.url}/v1",
        f"  dashboard  {instance.dashboard or 'none'}",
        f"  model      {instance.model}",
        f"  log        {instance.log}",
        f"  process    {instance.pid}",
    ]
    if not instance.services:
        return "\n".join(lines)
    rows = [("SERVICE", "STAGE", "PROCESS")]
    rows += [(service.name, service.stage, str(service.pid or "-")) for service in instance.services]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join([*lines, "", *table])


def duration(seconds: float) -> str:
    """Formats seconds as `12 s`, `5 min`, `3 h 20 min`, `2 d 4 h`."""
    seconds = max(0.0, seconds)
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
