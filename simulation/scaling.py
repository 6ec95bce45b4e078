"""Adds and removes simulated workers while a load runs, as an autoscaler decides from a gateway's standing."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from msgspec import Struct

from infra.redis.records import Role
from pricing.scaling.standing import Standing
from simulation.fleet import SimulatedFleet
from simulation.timeline import Timeline

LOOK_PERIOD_S = 1.0


class FleetChange(Protocol):
    """The addition (`by` 1) or the removal (-1) of one worker."""

    @property
    def role(self) -> str: ...

    @property
    def by(self) -> int: ...

    @property
    def worker(self) -> str:
        """The epoch of the worker that goes."""


class SimulatedScaling(Struct, frozen=True):
    """`look` gets a standing, the wanted workers by role, and the time, s; a new worker serves `start_s` later."""

    look: Callable[[Standing, Mapping[str, int], float], FleetChange | None]
    start_s: float


class FleetScaling:
    """Carries out an autoscaler's decisions: a removed worker drains first, and is paid for until it has drained."""

    def __init__(
        self, timeline: Timeline, fleet: SimulatedFleet, scaling: SimulatedScaling, standing: Callable[[], Standing]
    ) -> None:
        self._timeline = timeline
        self._fleet = fleet
        self._scaling = scaling
        self._standing = standing
        self._wanted = {role: len(fleet.living(role)) for role in ("prefill", "decode")}
        self._draining: list[str] = []
        self.changes = 0
        self._look()

    def _look(self) -> None:
        now = self._timeline.now
        self._draining = [epoch for epoch in self._draining if not self._fleet.leave(epoch)]
        change = self._scaling.look(self._standing(), self._wanted, now)
        if change is not None:
            self.changes += 1
            role: Role = "prefill" if change.role == "prefill" else "decode"
            self._wanted[role] += change.by
            if change.by > 0:
                self._timeline.after(self._scaling.start_s, partial(self._fleet.add, role, paid_from=now))
            else:
                self._fleet.drain(change.worker)
                self._draining.append(change.worker)
        self._timeline.after(LOOK_PERIOD_S, self._look)
