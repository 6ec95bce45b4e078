"""Says which workers share a placement group, and whether a cluster has room for a deployment. Pure.

A bundle of a placement group is on one node, so a worker's GPUs are. A pair is a prefill and a decode worker in one
group, which is packed: onto one node if one has room for both. Ray places each further group on the node that has most
left, so that pairs spread over the nodes.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.deployment import WORKERS, Role
from launcher.on_ray.order import Plan

GATEWAY_CPUS = 1.0
Resources = dict[str, float]  # as Ray names them: CPU, GPU


class Group(Struct, frozen=True):
    """Describes a placement group: a bundle for each of its workers."""

    name: str
    members: tuple[str, ...]


class NodeRoom(Struct, frozen=True):
    """Describes what a node has: all of it, and what nobody has taken."""

    address: str
    total: Resources
    free: Resources


def groups(prefill: int, decode: int) -> list[Group]:
    """Returns the placement groups of so many workers: pairs first, then those without a partner."""
    pairs = min(prefill, decode)
    paired = [Group(f"pair-{n}", (f"prefill-{n}", f"decode-{n}")) for n in range(pairs)]
    counts: dict[Role, int] = {"prefill": prefill, "decode": decode}
    alone = [f"{role}-{n}" for role in WORKERS for n in range(pairs, counts[role])]
    return [*paired, *(Group(name, (name,)) for name in alone)]


def bundle(plan: Plan, role: Role) -> Resources:
    """Returns what a worker takes of its node."""
    gpus = plan.orders[role].service.gpus
    return {"CPU": plan.cpus, **({"GPU": float(gpus)} if gpus else {})}


def wanted(plan: Plan) -> list[Resources]:
    """Returns what each process takes that takes anything."""
    workers = [bundle(plan, role) for role in WORKERS if role in plan.orders for _ in plan.orders[role].service.names]
    return [*workers, *({"CPU": GATEWAY_CPUS} for _ in plan.orders["gateway"].service.names)]


def lacking(nodes: Sequence[NodeRoom], wants: Sequence[Resources]) -> str:
    """Returns a sentence with what the cluster has too few of: what was found and what is wanted; empty: it has room.

    The largest are placed first, each on the node with most left: where that does not fit, nothing else is tried.
    """
    for kind in ("GPU", "CPU"):
        needed = sum(one.get(kind, 0.0) for one in wants)
        free = sum(node.free.get(kind, 0.0) for node in nodes)
        if needed > free:
            total = sum(node.total.get(kind, 0.0) for node in nodes)
            return (
                f"{_number(needed, kind)} wanted, and the cluster has {free:g} free of {total:g} ({_each(nodes, kind)})"
            )
    left = [dict(node.free) for node in nodes]
    for want in sorted(wants, key=lambda one: (-one.get("GPU", 0.0), -one.get("CPU", 0.0))):
        room = max(left, key=lambda free: (fits(free, want), free.get("GPU", 0.0), free.get("CPU", 0.0)))
        if not fits(room, want):
            kinds = " and ".join(_number(amount, kind) for kind, amount in want.items())
            return f"{kinds} wanted on one node, and none has as much free ({_each(nodes, *want)})"
        for kind, amount in want.items():
            room[kind] -= amount
    return ""


def fits(free: Mapping[str, float], want: Mapping[str, float]) -> bool:
    """Tells whether a node has as much free."""
    return all(free.get(kind, 0.0) >= amount for kind, amount in want.items())


def _number(amount: float, kind: str) -> str:
    return f"{amount:g} {kind}{'' if amount == 1 else 's'}"


def _each(nodes: Sequence[NodeRoom], *kinds: str) -> str:
    rooms = (
        f"{node.address}: " + ", ".join(_number(node.free.get(kind, 0.0), kind) for kind in kinds) for node in nodes
    )
    return "; ".join(rooms) or "it has no node"
