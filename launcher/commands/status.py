"""Shows this user's instances on this host (`baton status`), or hands over for a deployment on a Ray cluster."""

import sys
import time
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from contracts.errors import BatonError
from infra.cli import parse
from infra.redis.records import WorkerRecord
from launcher.columns import in_columns
from launcher.host.process import READY_STAGE, answers
from launcher.instance.endpoint import endpoint_of
from launcher.instance.instances import Instance, recorded
from launcher.options import StatusConfig
from launcher.ray_process import asks_for_ray, hand_over
from launcher.refusal import refused

NOT_READY, NO_INSTANCE = 1, 2  # exit statuses
NO_INSTANCE_HINT = (
    "no instance of this user runs on this host; ./baton up starts one, ./baton status --on ray looks at a Ray cluster"
)
PROBE_TIMEOUT_S = 5.0
NO_RECORDS: Mapping[str, WorkerRecord] = {}


class ReportedWorkers(Struct, frozen=True):
    """The part of a gateway's `/stats` that is shown."""

    workers: list[WorkerRecord]


def status(arguments: Sequence[str]) -> int:
    """Prints each instance. Returns the exit status: 0 all serve, 1 some do not, 2 no instance."""
    if asks_for_ray(arguments):
        return hand_over("status", arguments)
    try:
        parse(StatusConfig, arguments, "baton status")
    except BatonError as error:
        return refused(error)
    found = recorded()
    if not found:
        print(f"error: {NO_INSTANCE_HINT}", file=sys.stderr)
        return NO_INSTANCE
    served = [serves(instance) for instance in found]
    now = time.time()
    shown = [
        instance_text(instance, ready, now, worker_records(instance) if ready else NO_RECORDS)
        for instance, ready in zip(found, served, strict=True)
    ]
    print("\n\n".join(shown))
    return 0 if all(served) else NOT_READY


def serves(instance: Instance) -> bool:
    return instance.phase == "running" and answers(f"{instance.url}/ready", PROBE_TIMEOUT_S)


def worker_records(instance: Instance) -> dict[str, WorkerRecord]:
    """Asks the gateway for the records of the workers, by address; empty if it does not answer."""
    try:
        asked = endpoint_of(instance.url, instance, "", "").client(silence=PROBE_TIMEOUT_S)
        found = msgspec.json.decode(asked.get("/stats"), type=ReportedWorkers)
    except (BatonError, msgspec.DecodeError):
        return {}
    return {worker.address: worker for worker in found.workers}


def instance_text(instance: Instance, ready: bool, now: float, workers: Mapping[str, WorkerRecord] = NO_RECORDS) -> str:
    """Formats an instance and a table of its services. `now`: seconds since 1970; `workers`: records by address."""
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
    rows: list[tuple[str, ...]] = [("SERVICE", "STAGE", "PROCESS", "RESTARTS", "DEVICE", "RUNNING", "WAITING", "KV")]
    for service in instance.services:
        pid = str(service.pid or "-")
        rows.append(
            (service.name, service.stage, pid, str(service.restarts), *load_cells(workers.get(service.address)))
        )
    return "\n".join([*lines, "", *in_columns(rows)])


def load_cells(worker: WorkerRecord | None) -> tuple[str, str, str, str]:
    """Formats a worker's device, running and waiting sequences, and used KV blocks; dashes for another service."""
    if worker is None:
        return "-", "-", "-", "-"
    now = worker.load
    used = f"{100 * now.blocks_used / now.blocks_total:.0f}%" if now.blocks_total else "-"
    return worker.device, str(now.running), str(now.waiting), used


def duration(seconds: float) -> str:
    """Formats seconds as `12 s`, `5 min`, `3 h 20 min`, `2 d 4 h`."""
    seconds = max(0.0, seconds)
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
