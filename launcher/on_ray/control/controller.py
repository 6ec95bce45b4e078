"""Keeps a deployment on Ray: starts it, watches it, grows and shrinks it, takes it down, and says how it is.

It is a detached actor, so that `./baton status` and `./baton down` reach it from any process. What it knows it finds
again in the cluster: if its node dies, Ray starts it elsewhere, and it adopts what is there.
"""

import threading
import time

from ray.exceptions import RayError

from contracts.errors import BatonError
from launcher.deployment import START_ORDER, WORKERS, Role
from launcher.on_ray.control.fleet import Fleet
from launcher.on_ray.control.member import Member
from launcher.on_ray.control.scaling import Scaling
from launcher.on_ray.look import Overview, Phase
from launcher.on_ray.node.process import SECRET
from launcher.on_ray.node.reborn import is_reborn
from launcher.on_ray.order import Plan
from launcher.on_ray.told import Said

NAME = "controller"  # of the actor, in the deployment's namespace
POLL_SECONDS = 0.25
ALONE_SECONDS = 60.0  # without a word of the driver that keeps the deployment; then it is taken down


class Refused(BatonError):
    """A change of a deployment that cannot be made now."""


class Controller:
    """Has one thread that owns the fleet; calls take its lock, which nobody holds for longer than a change."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._fleet = Fleet(plan)
        self._said = Said()
        self._phase: Phase = "starting"
        self._error = ""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._heard_at = time.monotonic()
        if is_reborn():
            self._fleet.adopt()
            self._phase = "running"
            self._said.say("the controller was lost with its node, and goes on here")
        threading.Thread(target=self._keep, name="keep", daemon=True).start()
        if plan.rules is not None:
            gateway = plan.orders["gateway"]
            scaling = Scaling(plan.rules, gateway.files[SECRET].strip().encode(), self)
            threading.Thread(target=scaling.run, args=(gateway.redis,), name="scaling", daemon=True).start()

    def overview(self, heard: int, keeps: bool) -> Overview:
        """Says how the deployment is; `heard` of the sentences are known. `keeps`: the driver asks that keeps it."""
        if keeps:
            self._heard_at = time.monotonic()
        states = tuple(member.state() for member in list(self._fleet.members.values()))
        return Overview(
            phase=self._phase,
            error=self._error,
            services=states,
            sentences=self._said.since(heard),
            said=self._said.count,
        )

    def add(self, role: Role) -> str:
        """Adds a worker and returns its name, when Ray has found room for it. Raises `Refused`, `PlacementFailed`."""
        with self._lock:
            self._refuse_unless_running(role)
            member = self._fleet.add(role)
            member.adding = True
            self._said.say(f"{member.name} is added")
            return member.name

    def remove(self, role: Role) -> str:
        """Has one worker drain and end, and returns its name when it is gone. Raises `Refused`."""
        with self._lock:
            self._refuse_unless_running(role)
            found = self._fleet.least_bound(role)
            if len(found) < 2:
                raise Refused(f"{role}: there is one worker of this role, and it stays")
            return self._drop(found[0], "is removed")

    def remove_at(self, role: Role, address: str) -> str:
        """Has the worker at an address drain and end, and returns its name when it is gone. Raises `Refused`."""
        with self._lock:
            self._refuse_unless_running(role)
            there = [one for one in self._fleet.least_bound(role) if one.state().endpoint == address]
            if not there:
                raise Refused(f"{role}: no worker of this role is at {address}")
            return self._drop(there[0], "is removed")

    def counts(self) -> dict[str, int]:
        """Counts the workers by role; empty while the deployment does not run."""
        roles = [member.role for member in list(self._fleet.members.values())]
        return {role: roles.count(role) for role in WORKERS} if self._phase == "running" else {}

    def say(self, sentence: str) -> None:
        """Tells whoever watches."""
        self._said.say(sentence)

    def stop(self) -> None:
        """Begins to take everything down; the overview says when nothing is left."""
        self._stopping.set()

    def _refuse_unless_running(self, role: Role) -> None:
        if self._phase != "running":
            raise Refused(f"the deployment is {self._phase}")
        if role not in WORKERS or role not in self._plan.orders:
            raise Refused(f"{role}: the deployment has no workers of this role")

    def _drop(self, member: Member, how: str) -> str:
        self._fleet.remove(member)
        self._said.say(f"{member.name} {how}")
        return member.name

    def _keep(self) -> None:
        try:
            if self._phase == "starting":
                self._start()
            while not self._stopping.wait(POLL_SECONDS):
                self._watch()
        except (BatonError, RayError) as failure:
            self._error = str(failure)
        with self._lock:
            self._phase = "stopping"
            self._fleet.take_down()
            self._phase = "failed" if self._error else "stopped"

    def _start(self) -> None:
        """Starts everything, group by group. Raises `BatonError` where a service cannot start or has no room."""
        for roles in START_ORDER:
            with self._lock:
                self._fleet.start(roles)
            while not all(member.ready for member in self._fleet.members.values()):
                if self._stopping.wait(POLL_SECONDS):
                    return
                self._watch()
        self._phase = "running"

    def _watch(self) -> None:
        """Looks at all members once. Raises `BatonError` where the start has failed."""
        with self._lock:
            for member in list(self._fleet.members.values()):
                for sentence in member.poll():
                    self._said.say(sentence)
                member.adding = member.adding and not member.ready
                failure = member.last.failure if member.last is not None else ""
                if failure and self._phase == "starting":
                    raise Refused(failure)
                if failure and member.adding:
                    self._drop(member, f"is removed: {failure}")
        if self._plan.attached and time.monotonic() - self._heard_at > ALONE_SECONDS:
            self._error = f"the ./baton up that kept it has been silent for {ALONE_SECONDS:.0f} s"
            self._stopping.set()
