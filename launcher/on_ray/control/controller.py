"""The actor that controls a deployment on Ray: it starts, watches, scales and stops the deployment.

It is a detached actor, so that `./baton status` and `./baton down` reach it from any process. All of its state is in
the cluster: if its node dies, Ray restarts it elsewhere, and it adopts the running actors.
"""

import threading
import time

from ray.exceptions import RayError

from contracts.errors import BatonError
from launcher.deployment import START_ORDER, WORKERS, Role
from launcher.on_ray.control.fleet import Fleet
from launcher.on_ray.control.member import Member
from launcher.on_ray.control.scaling import Scaling
from launcher.on_ray.node.process import SECRET_FILE
from launcher.on_ray.node.restarted import was_restarted
from launcher.on_ray.order import RayPlan
from launcher.on_ray.overview import Overview, Phase
from launcher.on_ray.sentence_log import SentenceLog

CONTROLLER_NAME = "controller"  # of the actor, in the deployment's namespace
POLL_PERIOD_S = 0.25
MAX_DRIVER_SILENCE_S = 60.0  # of the `baton up` that an attached deployment ends with


class ChangeRefused(BatonError):
    """The deployment cannot be changed in this way now."""


class DeploymentController:
    """One thread owns the fleet; calls of the actor take its lock, which is held for one change at most."""

    def __init__(self, plan: RayPlan) -> None:
        self._plan = plan
        self._fleet = Fleet(plan)
        self._said = SentenceLog()
        self._phase: Phase = "starting"
        self._error = ""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._heard_at = time.monotonic()
        if was_restarted():
            self._fleet.adopt()
            self._phase = "running"
            self._said.say("the controller was lost with its node, and goes on here")
        threading.Thread(target=self._run, name="controller", daemon=True).start()
        if plan.rules is not None:
            gateway = plan.orders["gateway"]
            scaling = Scaling(plan.rules, gateway.files[SECRET_FILE].strip().encode(), self)
            threading.Thread(target=scaling.run, args=(gateway.redis,), name="scaling", daemon=True).start()

    def overview(self, heard: int, keeps: bool) -> Overview:
        """Returns the overview, with all sentences but the first `heard`, which the caller has.

        `keeps`: the caller is the attached `baton up`, whose silence would end the deployment.
        """
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
        """Adds a worker; returns its name when Ray has placed it. Raises `ChangeRefused`, `PlacementFailed`."""
        with self._lock:
            self._refuse_unless_running(role)
            member = self._fleet.add(role)
            member.adding = True
            self._said.say(f"{member.name} is added")
            return member.name

    def remove(self, role: Role) -> str:
        """Drains and removes a worker; returns its name when it has ended. Raises `ChangeRefused`."""
        with self._lock:
            self._refuse_unless_running(role)
            found = self._fleet.removal_order(role)
            if len(found) < 2:
                raise ChangeRefused(f"{role}: there is one worker of this role, and it stays")
            return self._remove(found[0], "is removed")

    def remove_at(self, role: Role, address: str) -> str:
        """Drains and removes the worker at an address; returns its name when it has ended. Raises `ChangeRefused`."""
        with self._lock:
            self._refuse_unless_running(role)
            there = [one for one in self._fleet.removal_order(role) if one.state().endpoint == address]
            if not there:
                raise ChangeRefused(f"{role}: no worker of this role is at {address}")
            return self._remove(there[0], "is removed")

    def counts(self) -> dict[str, int]:
        """Returns the number of workers by role; empty while the deployment does not run."""
        roles = [member.role for member in list(self._fleet.members.values())]
        return {role: roles.count(role) for role in WORKERS} if self._phase == "running" else {}

    def say(self, sentence: str) -> None:
        self._said.say(sentence)

    def stop(self) -> None:
        """Begins to stop the deployment; the overview shows when it has stopped."""
        self._stopping.set()

    def _refuse_unless_running(self, role: Role) -> None:
        if self._phase != "running":
            raise ChangeRefused(f"the deployment is {self._phase}")
        if role not in WORKERS or role not in self._plan.orders:
            raise ChangeRefused(f"{role}: the deployment has no workers of this role")

    def _remove(self, member: Member, how: str) -> str:
        self._fleet.remove(member)
        self._said.say(f"{member.name} {how}")
        return member.name

    def _run(self) -> None:
        try:
            if self._phase == "starting":
                self._start()
            while not self._stopping.wait(POLL_PERIOD_S):
                self._watch()
        except (BatonError, RayError) as failure:
            self._error = str(failure)
        with self._lock:
            self._phase = "stopping"
            self._fleet.take_down()
            self._phase = "failed" if self._error else "stopped"

    def _start(self) -> None:
        for roles in START_ORDER:
            with self._lock:
                self._fleet.start(roles)
            while not all(member.ready for member in self._fleet.members.values()):
                if self._stopping.wait(POLL_PERIOD_S):
                    return
                self._watch()
        self._phase = "running"

    def _watch(self) -> None:
        with self._lock:
            for member in list(self._fleet.members.values()):
                for sentence in member.poll():
                    self._said.say(sentence)
                member.adding = member.adding and not member.ready
                failure = member.last.failure if member.last is not None else ""
                if failure and self._phase == "starting":
                    raise ChangeRefused(failure)
                if failure and member.adding:
                    self._remove(member, f"is removed: {failure}")
        if self._plan.attached and time.monotonic() - self._heard_at > MAX_DRIVER_SILENCE_S:
            self._error = f"the ./baton up that kept it has been silent for {MAX_DRIVER_SILENCE_S:.0f} s"
            self._stopping.set()
