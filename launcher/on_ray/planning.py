"""Makes the plan of a deployment on a cluster: settings of each service, and nodes of services that need one."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from contracts.errors import ConfigError
from contracts.ids import new_epoch
from contracts.slo import SLO, Objective, parse_objective
from infra.network.listening import ANY_ADDRESS, http_url
from launcher.autoscale.rules import Rules, parse_rules
from launcher.deployment import Deployment, Role, hub_settings
from launcher.devices.rank_width import widths_of
from launcher.devices.worker_counts import AvailableGpus, decide_workers, with_rank_width
from launcher.host.processes import OPERATOR_KEY_FILE, OPERATOR_KEYS_FILE, host_deployment
from launcher.host.secret_files import make_operator_key, secret_path
from launcher.on_ray.cluster import ClusterError
from launcher.on_ray.node.process import SECRET_FILE
from launcher.on_ray.node.redis import redis_url
from launcher.on_ray.order import Order, RayPlan, RedisServer
from launcher.on_ray.placement import NodeResources, Resources
from launcher.options import UpConfig

DEFAULT_SLO = SLO(2000.0, 100.0)
"""The objective without `--slo`: the default of a gateway."""
GPU_KIND_PREFIX = "accelerator_type:"
"""Begins the name of a resource of Ray's that says which GPUs a node has, such as accelerator_type:H100."""


def with_decided_workers(
    config: UpConfig, nodes: Mapping[str, NodeResources], directory: Path | None = None
) -> tuple[UpConfig, list[str]]:
    """Returns the options with the device, the numbers of workers and their widths decided, and sentences about them.

    A number that the user left open fills the free GPUs. With `--autoscale` it begins at 1 and follows the load.
    `directory`: the model's; None for a hub id.
    """
    total, free = _gpus(node.total for node in nodes.values()), _gpus(node.free for node in nodes.values())
    device = config.device if config.device != "auto" else "cuda" if total else "cpu"
    kinds = [kind for node in nodes.values() for kind in node.total if kind.startswith(GPU_KIND_PREFIX)]
    usable = [] if device == "cpu" else free or total  # without a free GPU `lacking` says what is missing
    name = kinds[0].removeprefix(GPU_KIND_PREFIX) if kinds else ""
    gpus = AvailableGpus(usable, lambda: name, most=0 if device == "cpu" else max(total, default=0))
    if config.ray.autoscale:
        engine, about_width = with_rank_width(config, gpus, directory)
        prefill = int(gpus.workers(max(widths_of(engine))) != 1) if config.prefill is None else config.prefill
        decided = replace(config, device=device, prefill=prefill, decode=config.decode or 1, engine=engine)
        return decided, [about_width] if about_width else []
    prefill, decode, engine, notes = decide_workers(config, gpus, directory)
    return replace(config, device=device, prefill=prefill, decode=decode, engine=engine), notes


def _gpus(resources: Iterable[Resources]) -> list[int]:
    """Returns the numbers of whole GPUs of nodes that have any."""
    return [whole for each in resources if (whole := int(each.get("GPU", 0.0)))]


def redis_node(config: UpConfig, nodes: Mapping[str, NodeResources], here: str) -> str:
    """Returns the id of the node for the deployment's own Redis. Raises `ClusterError`."""
    if not config.ray.redis_node:
        return here
    found = [node for node, room in nodes.items() if room.address == config.ray.redis_node]
    if not found:
        there = ", ".join(sorted({room.address for room in nodes.values()}))
        raise ClusterError(f"--redis-node: {config.ray.redis_node!r}: is no node of the cluster, which has {there}")
    return found[0]


def scaling_rules(config: UpConfig) -> Rules | None:
    """Reads `--autoscale` for these numbers of workers. Raises `ConfigError`."""
    text = config.ray.autoscale
    if not text:
        return None
    wanted = parse_objective(config.slo).over(Objective(DEFAULT_SLO.ttft_ms, DEFAULT_SLO.tpot_ms))
    rules = parse_rules(text, wanted.limits(DEFAULT_SLO))
    if config.prefill == 0 and "prefill" in rules.bounds:
        raise ConfigError("--autoscale", text, "there is no prefill worker (--prefill 0)")
    return rules


def make_plan(
    config: UpConfig, run: Path, nodes: Mapping[str, NodeResources], here: str, server: RedisServer | None
) -> RayPlan:
    """Makes the plan. `here`: id of this process's node; `server`: the deployment's own Redis, or None for --redis."""
    make_operator_key(config, run)
    files = {SECRET_FILE: secret_path(config, run).read_text()}
    names = (OPERATOR_KEYS_FILE, OPERATOR_KEY_FILE) if config.api_keys else ()
    keys = {name: (run / name).read_text() for name in names}
    deployment: Deployment = host_deployment(config)
    anywhere = config.host in ANY_ADDRESS
    host = nodes[here].address if anywhere else config.host
    identity = new_epoch()[:12]
    orders: dict[Role, Order] = {}
    for service in deployment.services:
        orders[service.role] = Order(
            name=service.role,
            deployment=identity,
            service=service,
            silent_seconds=config.silent_seconds,
            redis=config.redis if server is None else redis_url(server),
            files=keys if service.role == "dashboard" else {**files, **keys} if service.role == "gateway" else files,
            hub=hub_settings(os.environ) if "models" in service.keeps else {},
            share_port=new_epoch() if service.role == "gateway" and service.replicas > 1 else "",
            gateway=http_url(host, config.port, bool(config.tls_cert)) if service.role == "dashboard" else "",
            server=server if service.role == "redis" else None,
        )
    pinned: dict[Role, str] = {} if anywhere else {"gateway": here, "dashboard": here}
    if server is not None:
        pinned["redis"] = redis_node(config, nodes, here)
    return RayPlan(
        deployment=identity,
        namespace=config.ray.ray_namespace,
        orders=orders,
        pinned=pinned,
        cpus=config.ray.worker_cpus,
        rules=scaling_rules(config),
        attached=not config.ray.detach,
    )
