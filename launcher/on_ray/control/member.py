"""Polls one service's actor without waiting, and ends it."""

import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from launcher.deployment import Role
from launcher.host.process import READY_STAGE
from launcher.on_ray.overview import ActorReport, MemberState
from launcher.on_ray.placement import WorkerGroup

MAX_ACTOR_SILENCE_S = 3.0  # after which the actor counts as being created, or its node as lost


class Member:
    """The handle of one service's actor, and its last report."""

    def __init__(self, name: str, role: Role, handle: Any, group: WorkerGroup | None) -> None:
        self.name = name
        self.role = role
        self.handle = handle
        self.group = group  # placement group of its bundle
        self.last: ActorReport | None = None
        self.adding = False  # added to a running deployment, and not ready yet
        self.leaving = False
        self._asked: Any = None
        self._asked_at = 0.0
        self._heard = 0
        self._lost = False

    def poll(self) -> tuple[str, ...]:
        """Reads the answer of the last call, if it has arrived, and calls again. Returns new sentences."""
        sentences: tuple[str, ...] = ()
        if self._asked is not None:
            answered, _ = ray.wait([self._asked], timeout=0)
            if not answered:
                return ()
            try:
                report: ActorReport = ray.get(self._asked)
            except RayActorError:
                self._heard = 0
                if not self._lost:
                    sentences = (
                        f"{self.name} is lost with its actor or its node; Ray starts it again where there is room",
                    )
                self._lost = True
            else:
                sentences = report.sentences
                if self._lost and report.stage == READY_STAGE:
                    sentences = (*sentences, f"{self.name} is ready again, on {report.address}")
                self._lost = self._lost and report.stage != READY_STAGE
                self.last, self._heard = report, report.said
        self._asked, self._asked_at = self.handle.report.remote(self._heard), time.monotonic()
        return sentences

    @property
    def silent(self) -> bool:
        return self._asked is not None and time.monotonic() - self._asked_at > MAX_ACTOR_SILENCE_S

    @property
    def ready(self) -> bool:
        return self.last is not None and self.last.stage == READY_STAGE and not self._lost

    def state(self) -> MemberState:
        report = self.last
        if self.leaving:
            return MemberState(name=self.name, role=self.role, stage="draining")
        if report is None or self._lost or self.silent:
            waits = "waiting for Ray" if self.silent else "starting"
            return MemberState(name=self.name, role=self.role, stage=waits)
        return MemberState(
            name=self.name,
            role=self.role,
            stage=report.stage,
            percent=report.percent,
            address=report.address,
            endpoint=report.endpoint,
        )

    def ask_to_stop(self) -> Any:
        """Has the process drain and end. Returns Ray's reference to wait for; None: the actor cannot be reached."""
        self.leaving = True
        if self.last is None or self._lost or self.silent:
            return None
        return self.handle.stop.remote()

    def kill(self) -> None:
        """Ends the actor, without a restart, and its process."""
        with suppress(RayError):  # it is gone
            ray.kill(self.handle, no_restart=True)
