"""Prepares the process of an order on its node: directory, files, command line."""

import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from contracts.errors import ConfigError
from infra.config.gateway import GatewayConfig
from infra.config.place import PlaceOptions
from infra.network.bind_address import bracketed
from infra.network.listening import ANY_ADDRESS, http_url
from infra.process.status import Status, read_status
from launcher.deployment import WORKERS, Locations, command
from launcher.host.process import READY_STAGE, Process, Watch, watch_http, watch_status_file
from launcher.host.processes import OPERATOR_KEY_FILE, OPERATOR_KEYS_FILE, environment
from launcher.instance.held_file import is_held
from launcher.on_ray.node.redis import redis_process
from launcher.on_ray.order import Order
from launcher.options import ROOT

OWNER_FILE = "owner"  # file in a process's directory that its actor keeps locked
SECRET_FILE = "secret"
DIRECTORY_PREFIX = "baton-ray-"
MIN_AGE_S = 60.0  # a younger directory may not have its lock yet


def shared_directory(deployment: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{DIRECTORY_PREFIX}{deployment}"


def make_directory(order: Order) -> Path:
    """Makes a process's private directory, in place of the directory of an earlier process of this name."""
    shared = shared_directory(order.deployment)
    shared.mkdir(mode=0o700, exist_ok=True)
    status = shared.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigError("TMPDIR", str(shared), "is another user's")
    sweep(shared.parent)
    run = shared / order.name
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(mode=0o700)
    for name, content in order.files.items():
        (run / name).touch(mode=0o600)
        (run / name).write_text(content)
    return run


def sweep(base: Path) -> None:
    """Removes this user's directories of deployments without a process on this host."""
    for shared in base.glob(f"{DIRECTORY_PREFIX}*"):
        with suppress(FileNotFoundError):
            status = shared.lstat()
            old = status.st_uid == os.getuid() and time.time() - status.st_mtime > MIN_AGE_S
            if old and not any(is_held(owner) for owner in shared.glob(f"*/{OWNER_FILE}")):
                shutil.rmtree(shared, ignore_errors=True)


def node_environment(inherited: Mapping[str, str], order: Order, run: Path) -> dict[str, str]:
    """Returns the environment of the process: the actor's, without variables that Ray sets for itself.

    The node's own hub variables win over the deployment's. Ray sets OMP_NUM_THREADS to the actor's CPUs, but workers
    divide the node's cores among themselves.
    """
    kept = {
        name: value for name, value in inherited.items() if not name.startswith("RAY_") and name != "OMP_NUM_THREADS"
    }
    if "CUDA_VISIBLE_DEVICES" in kept:
        kept.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as Ray counts them
    return environment({**order.hub, **kept}, ROOT, run)


def make_process(order: Order, run: Path, address: str) -> Process:
    """Makes the process on this node, whose advertised address is `address`."""
    if order.server is not None:
        return redis_process(order.server, run, order.service.max_memory)
    status = run / "status"
    place = Locations(
        redis=order.redis,
        secret_file=str(run / SECRET_FILE),
        status_file=str(status),
        worker=PlaceOptions(host=address),
        busy_page=str(run.parent / "busy") if order.service.role in WORKERS else "",
        share_port=order.share_port,
        gateway=order.gateway,
        operator_keys_file=str(run / OPERATOR_KEYS_FILE) if OPERATOR_KEYS_FILE in order.files else "",
        operator_key_file=str(run / OPERATOR_KEY_FILE) if OPERATOR_KEY_FILE in order.files else "",
        python=(sys.executable, "-P"),
    )
    watch = watch_status_file(status)
    if isinstance(order.service.settings, GatewayConfig):
        watch = _watch_gateway(status, order.service.probes.ready)
    words = command(order.service, place)
    return Process(order.name, words, watch, status_file=status, beats=order.service.beats, grace=order.service.grace)


def _watch_gateway(status_file: Path, path: str) -> Watch:
    def watch() -> Status | None:
        status = read_status(status_file)
        if status is None or status.stage != READY_STAGE:
            return status
        return watch_http(f"{status.address}{path}")()

    return watch


def advertised(order: Order, status: Status | None, address: str) -> str:
    """Returns the address at which others reach the process; empty: not known yet."""
    if order.server is not None:
        return f"{bracketed(order.server.address)}:{order.server.port}"
    settings = order.service.settings
    if (
        status is None
        or not status.address
        or not isinstance(settings, GatewayConfig)
        or settings.host not in ANY_ADDRESS
    ):
        return "" if status is None else status.address
    return http_url(address, int(status.address.rpartition(":")[2]), bool(settings.tls_cert))
