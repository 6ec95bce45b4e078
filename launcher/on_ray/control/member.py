"""Follows one service's actor: asks it how its process is, without ever waiting, and takes it down."""

import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from launcher.deployment import Role
from launcher.host.process import READY
from launcher.on_ray.look import Look, ServiceState
from launcher.on_ray.placement import Group

SILENT_SECONDS = 3.0  # without an answer: the actor is being made, or its node is gone


class Member:
    """Holds the handle of one service's actor and its last answer."""

    def __init__(self, name: str, role: Role, handle: Any, group: Group | None) -> None:
        self.name = name
        self.role = role
        self.handle = handle
        self.group = group  # the placement group that it has a bundle of
        self.last: Look | None = None
        self.adding = False  # to a deployment that runs, and not ready for the first time yet
        self.leaving = False
        self._asked: Any = None
        self._asked_at = 0.0
        self._heard = 0
        self._lost = False

    def poll(self) -> tuple[str, ...]:
        """Takes the answer to the last question, if it has come, and asks again. Returns what is new."""
        sentences: tuple[str, ...] = ()
        if self._asked is not None:
            answered, _ = ray.wait([self._asked], timeout=0)
            if not answered:
                return ()
            try:
                look: Look = ray.get(self._asked)
            except RayActorError:
                self._heard = 0
                if not self._lost:
                    sentences = (
                        f"{self.name} is lost with its actor or its node; Ray starts it again where there is room",
                    )
                self._lost = True
            else:
                sentences = look.sentences
                if self._lost and look.stage == READY:
                    sentences = (*sentences, f"{self.name} is ready again, on {look.address}")
                self._lost = self._lost and look.stage != READY
                self.last, self._heard = look, look.said
        self._asked, self._asked_at = self.handle.look.remote(self._heard), time.monotonic()
        return sentences

    @property
    def silent(self) -> bool:
        """Tells whether no answer comes."""
        return self._asked is not None and time.monotonic() - self._asked_at > SILENT_SECONDS

    @property
    def ready(self) -> bool:
        """Tells whether its process serves."""
        return self.last is not None and self.last.stage == READY and not self._lost

    def state(self) -> ServiceState:
        """Returns what others are shown."""
        look = self.last
        if self.leaving:
            return ServiceState(name=self.name, role=self.role, stage="draining")
        if look is None or self._lost or self.silent:
            waits = "waiting for Ray" if self.silent else "starting"
            return ServiceState(name=self.name, role=self.role, stage=waits)
        return ServiceState(
            name=self.name,
            role=self.role,
            stage=look.stage,
            percent=look.percent,
            address=look.address,
            endpoint=look.endpoint,
        )

    def ask_to_stop(self) -> Any:
        """Has the process drain and end; returns what is ready when it is gone. None: there is nobody to ask."""
        self.leaving = True
        if self.last is None or self._lost or self.silent:
            return None
        return self.handle.stop.remote()

    def kill(self) -> None:
        """Ends the actor for good, and its process with it."""
        with suppress(RayError):  # it is gone
            ray.kill(self.handle, no_restart=True)
