"""Checks libraries, driver, model and other files on each node before a service starts."""

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contracts.errors import BatonError, ConfigError
from infra.process.nvidia_driver import refuse_old_driver
from launcher.checking.model_directory import checked
from launcher.on_ray.cluster import ClusterError
from launcher.on_ray.placement import NodeResources

CHECKED_LIBRARIES = ("torch", "transformers", "pyzmq", "msgspec", "llguidance", "fastapi", "cryptography")
CHECK_TIMEOUT_S = 60.0  # for all nodes; the first task of a node unpacks the code


def versions() -> dict[str, str]:
    """Returns library → installed version; empty: not installed."""
    found = {}
    for name in CHECKED_LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def complaint(required: Mapping[str, str], model: str, readable: Iterable[tuple[str, str]], device: str) -> str:
    """Returns what this node lacks, or ''. `readable`: (option, path) of files that a service opens."""
    for name, here in versions().items():
        if here.partition("+")[0] != required[name].partition("+")[0]:
            has = f"has {name} {here}" if here else f"has no {name}"
            wanted = f"{required[name]} is wanted: run ./baton there, and start Ray by ./baton ray start"
            return f"its Python {has}, and {wanted}"
    try:
        refuse_old_driver(device)
        checked(model)
        for option, path in readable:
            if not Path(path).exists():
                raise ConfigError(option, path, "there is no such file or directory")
    except BatonError as error:
        return str(error)
    return ""


def check_nodes(nodes: Mapping[str, NodeResources], model: str, readable: list[tuple[str, str]], device: str) -> None:
    """Checks all nodes concurrently. Raises `ClusterError` with the first complaint and the node's address."""
    ask = ray.remote(complaint)
    wanted = versions()
    calls: dict[Any, str] = {}
    for node, room in nodes.items():
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        needs = device if room.total.get("GPU") else "cpu"
        call = ask.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(wanted, model, readable, needs)
        calls[call] = room.address
    done, late = ray.wait(list(calls), num_returns=len(calls), timeout=CHECK_TIMEOUT_S)
    for call in done:
        try:
            wrong = ray.get(call)
        except RayError as error:
            wrong = f"cannot run our code: {str(error).strip().splitlines()[-1]}"
        if wrong:
            raise ClusterError(f"node {calls[call]}: {wrong}")
    if late:
        raise ClusterError(f"node {calls[late[0]]}: does not run a task within {CHECK_TIMEOUT_S:.0f} s")
