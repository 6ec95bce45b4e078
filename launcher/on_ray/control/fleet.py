"""Owns the actors and placement groups of a deployment: creates, adopts and removes them."""

import shutil
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from contracts.errors import BatonError
from launcher.deployment import CLOSE_S, STOP_ORDER, WORKERS, Role
from launcher.on_ray.control.member import Member
from launcher.on_ray.node.process import shared_directory
from launcher.on_ray.node.service_actor import ServiceActor
from launcher.on_ray.order import RayPlan
from launcher.on_ray.placement import GATEWAY_CPUS, WorkerGroup, bundle, groups

PLACEMENT_TIMEOUT_S = 20.0
REMOVAL_TIMEOUT_S = 10.0
CONCURRENT_CALLS = 4  # of an actor; a call of `stop` waits for the end of its process


class PlacementFailed(BatonError):
    """Ray finds no node for a worker."""


class Fleet:
    """The members of one deployment. Only one thread at a time may call its methods."""

    def __init__(self, plan: RayPlan) -> None:
        self._plan = plan
        self._groups: dict[str, PlacementGroup] = {}
        self.members: dict[str, Member] = {}

    def start(self, roles: Sequence[Role]) -> None:
        """Starts the actors of some roles. Raises `PlacementFailed`."""
        orders = self._plan.orders
        counts = [orders[role].service.replicas if role in orders and role in roles else 0 for role in WORKERS]
        for group in groups(*counts):
            self._reserve(group)
            for name in group.members:
                self._make(role_of(name), name, group)
        for role in roles:
            if role in orders and role not in WORKERS:
                for name in orders[role].service.names:
                    self._make(role, name)

    def add(self, role: Role) -> Member:
        """Adds a worker with the lowest free number. Raises `PlacementFailed`."""
        number = next(n for n in range(len(self.members) + 1) if f"{role}-{n}" not in self.members)
        name = f"{role}-{number}"
        vacant = self._vacant_group(role)
        group = vacant or WorkerGroup(name, (name,))
        if vacant is None:
            self._reserve(group)
        return self._make(role, name, group)

    def remove(self, member: Member) -> None:
        """Drains and ends a worker, and removes its placement group if no other worker uses it."""
        self._stop_members([member])
        group = member.group
        if group is not None and not any(other.group == group for other in self.members.values()):
            remove_placement_group(self._groups.pop(group.name))

    def removal_order(self, role: Role) -> list[Member]:
        """Returns the workers of a role in the order in which they should be removed.

        Workers alone in their placement group come first, since their group goes with them; of these the latest.
        """
        found = [member for member in self.members.values() if member.role == role]
        return sorted(
            found, key=lambda member: (len(member.group.members) if member.group else 0, -number_of(member.name))
        )

    def take_down(self) -> None:
        """Stops all services in their order, and removes everything of the deployment from the cluster."""
        for roles in STOP_ORDER:
            self._stop_members([member for member in self.members.values() if member.role in roles])
        for group in self._groups.values():
            remove_placement_group(group)
        self._groups.clear()
        self._remove_directories()

    def adopt(self) -> None:
        """Takes over the actors and placement groups of the controller before its restart."""
        orders = self._plan.orders
        counts = [orders[role].service.replicas if role in orders else 0 for role in WORKERS]
        planned = {name: group for group in groups(*counts) for name in group.members}
        for name in ray.util.list_named_actors():
            role = role_of(name)
            if role not in orders:
                continue
            group = None if role not in WORKERS else planned.get(name) or WorkerGroup(name, (name,))
            self.members[name] = Member(name, role, ray.get_actor(name, self._plan.namespace), group)
            if group is not None and group.name not in self._groups:
                self._groups[group.name] = ray.util.get_placement_group(group.name)

    def _vacant_group(self, role: Role) -> WorkerGroup | None:
        """Returns a group with a bundle that a removed worker of this role has left, or None."""
        for member in self.members.values():
            for name in member.group.members if member.group else ():
                if name not in self.members and role_of(name) == role:
                    return member.group
        return None

    def _reserve(self, group: WorkerGroup) -> None:
        bundles = [bundle(self._plan, role_of(name)) for name in group.members]
        made = placement_group(bundles, strategy="PACK", name=group.name, lifetime="detached")
        self._groups[group.name] = made
        if not made.wait(PLACEMENT_TIMEOUT_S):
            del self._groups[group.name]
            state = placement_group_table(made).get("state", "unknown")
            remove_placement_group(made)
            needs = " and ".join(", ".join(f"{n:g} {kind}" for kind, n in one.items()) for one in bundles)
            raise PlacementFailed(f"{' and '.join(group.members)}: Ray finds no nodes with {needs} free ({state})")

    def _make(self, role: Role, name: str, group: WorkerGroup | None = None) -> Member:
        plan = self._plan
        order = plan.orders[role].named(name)
        options: dict[str, Any] = {"num_cpus": GATEWAY_CPUS if role == "gateway" else 0}
        if group is not None:
            taken = bundle(plan, role)
            options = {"num_cpus": taken["CPU"], "num_gpus": taken.get("GPU", 0)}
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._groups[group.name], placement_group_bundle_index=group.members.index(name)
            )
        elif role in plan.pinned:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(plan.pinned[role], soft=False)
        else:
            options["scheduling_strategy"] = "SPREAD"
        actor = ray.remote(ServiceActor).options(
            name=name,
            namespace=plan.namespace,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=CONCURRENT_CALLS,
            **options,
        )
        member = Member(name, role, actor.remote(order), group)
        self.members[name] = member
        return member

    def _stop_members(self, members: Sequence[Member]) -> None:
        asked = [call for member in members if (call := member.ask_to_stop()) is not None]
        if asked:
            longest = max(self._plan.orders[member.role].service.grace for member in members)
            ray.wait(asked, num_returns=len(asked), timeout=longest + CLOSE_S)
        for member in members:
            member.kill()
            del self.members[member.name]

    def _remove_directories(self) -> None:
        remove = ray.remote(remove_directory)
        calls = [
            remove.options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(self._plan.deployment)
            for node in ray.nodes()
            if node["Alive"]
        ]
        ray.wait(calls, num_returns=len(calls), timeout=REMOVAL_TIMEOUT_S)
        until = time.monotonic() + REMOVAL_TIMEOUT_S
        while time.monotonic() < until and any(
            role_of(name) in self._plan.orders for name in ray.util.list_named_actors()
        ):
            time.sleep(0.05)


def role_of(name: str) -> Role:
    role: Role = name.partition("-")[0]  # type: ignore[assignment]
    return role


def number_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def remove_directory(deployment: str) -> None:
    shutil.rmtree(shared_directory(deployment), ignore_errors=True)
