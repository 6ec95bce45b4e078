"""Assigns workers to placement groups, and checks that a cluster has the resources of a deployment. Pure.

Ray places a bundle of a placement group on one node, and so all GPUs of a worker. A prefill and a decode worker share a
packed group: they are on one node if it has the resources of both. Ray places each further group on the node with most
free resources, so that pairs spread over the nodes.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.counted_noun import counted_noun
from launcher.deployment import WORKERS, Role
from launcher.on_ray.order import RayPlan

GATEWAY_CPUS = 1.0
Resources = dict[str, float]  # as Ray names them: CPU, GPU


class WorkerGroup(Struct, frozen=True):
    """A placement group, with a bundle for each of its workers."""

    name: str
    members: tuple[str, ...]


class NodeResources(Struct, frozen=True):
    """Resources of a node: all, and resources without a reservation."""

    address: str
    total: Resources
    free: Resources


def groups(prefill: int, decode: int) -> list[WorkerGroup]:
    """Returns the placement groups of `prefill` and `decode` workers: pairs first, then workers without a partner."""
    pairs = min(prefill, decode)
    paired = [WorkerGroup(f"pair-{n}", (f"prefill-{n}", f"decode-{n}")) for n in range(pairs)]
    counts: dict[Role, int] = {"prefill": prefill, "decode": decode}
    alone = [f"{role}-{n}" for role in WORKERS for n in range(pairs, counts[role])]
    return [*paired, *(WorkerGroup(name, (name,)) for name in alone)]


def bundle(plan: RayPlan, role: Role) -> Resources:
    gpus = plan.orders[role].service.gpus
    return {"CPU": plan.cpus, **({"GPU": float(gpus)} if gpus else {})}


def process_resources(plan: RayPlan) -> list[Resources]:
    """Returns the resources of each process that reserves any."""
    workers = [bundle(plan, role) for role in WORKERS if role in plan.orders for _ in plan.orders[role].service.names]
    return [*workers, *({"CPU": GATEWAY_CPUS} for _ in plan.orders["gateway"].service.names)]


def lacking(nodes: Sequence[NodeResources], wants: Sequence[Resources]) -> str:
    """Returns a sentence that names the missing resources, found and wanted; empty: the cluster suffices.

    Processes are placed by size, the largest first, each on the node with most free resources; no other placement is
    tried.
    """
    for kind in ("GPU", "CPU"):
        needed = sum(one.get(kind, 0.0) for one in wants)
        free = sum(node.free.get(kind, 0.0) for node in nodes)
        if needed > free:
            total = sum(node.total.get(kind, 0.0) for node in nodes)
            requested = counted_noun(needed, kind)
            return f"{requested} wanted, and the cluster has {free:g} free of {total:g} ({_free_of_each(nodes, kind)})"
    left = [dict(node.free) for node in nodes]
    for want in sorted(wants, key=lambda one: (-one.get("GPU", 0.0), -one.get("CPU", 0.0))):
        room = max(left, key=lambda free: (fits(free, want), free.get("GPU", 0.0), free.get("CPU", 0.0)))
        if not fits(room, want):
            kinds = " and ".join(counted_noun(amount, kind) for kind, amount in want.items())
            return f"{kinds} wanted on one node, and none has as much free ({_free_of_each(nodes, *want)})"
        for kind, amount in want.items():
            room[kind] -= amount
    return ""


def fits(free: Mapping[str, float], want: Mapping[str, float]) -> bool:
    return all(free.get(kind, 0.0) >= amount for kind, amount in want.items())


def _free_of_each(nodes: Sequence[NodeResources], *kinds: str) -> str:
    rooms = []
    for node in nodes:
        free = ", ".join(counted_noun(node.free.get(kind, 0.0), kind) for kind in kinds)
        rooms.append(f"{node.address}: {free}")
    return "; ".join(rooms) or "it has no node"
