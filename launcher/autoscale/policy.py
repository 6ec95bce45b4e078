"""Decides when a worker is added or removed, one at a time. Pure: observations and times go in, changes come out.

A worker is added where the average pressure on a role exceeds 1 (`pressure.py`), and removed where the pressure on one
worker fewer stays below 1 - REMOVAL_MARGIN for `down` seconds. After a change nothing happens for a cool-down, nor
while a worker starts, drains or is missing, nor on old figures. Under a constant load a role does not swing: the
pressure that added a worker forbids its removal. If that prediction was wrong, and a removed worker is soon needed
again, the next removal takes twice as long.
"""

from collections.abc import Mapping
from math import exp
from typing import NamedTuple

from launcher.autoscale.pressure import pressure
from launcher.autoscale.rules import ROLES, Rules
from pricing.scaling.standing import Standing, WorkerStanding

REMOVAL_MARGIN = 0.25
"""A worker is removed if the pressure on the others stays below 1 less this margin."""
PRESSURE_MEMORY_S = 10.0
"""Time constant of the average pressure, in seconds."""
MAX_PRESSURE = 1.5
"""Upper bound of a single pressure in the average: one bad moment neither adds a worker nor keeps one."""
MAX_FIGURE_AGE_S = 5.0
"""Oldest figures that count, in seconds."""
REGRET_COOL_DOWNS = 4.0
"""An addition within this many times `down` after a removal shows that the removal was wrong."""
MAX_CALM_S = 3600.0
"""Longest time, in seconds, for which a low load has to last before a removal, however many removals were wrong."""
REGRET_MEMORY_S = 6 * 3600.0
"""Seconds without a wrong removal after which that time is halved."""


class ScalingInput(NamedTuple):
    """Observation at one moment."""

    standing: Standing | None  # None: no gateway has published one
    age: float  # s since it was published
    wanted: Mapping[str, int]  # workers that should run now, by role, including starting workers


class ScalingChange(NamedTuple):
    """Addition or removal of one worker, with the reason."""

    role: str
    by: int  # 1 or -1
    worker: str  # epoch of the worker to drain; empty for an addition
    why: str  # a clause


class ScalingPolicy:
    """Autoscaling of one deployment. `now` is local time, s."""

    def __init__(self, rules: Rules, now: float) -> None:
        self._rules = rules
        self._changed = now
        self._pressure: dict[str, float] = {}  # average, by role
        self._on_fewer: dict[str, float] = {}  # the same with one worker fewer
        self._looked = now
        self._calm: dict[str, float] = {}  # since when one worker fewer would be enough, by role
        self._removed: dict[str, float] = {}  # time of the last removal, by role
        self._patience: dict[str, float] = {role: rules.down for role in rules.bounds}  # s of calm
        self._regretted: dict[str, float] = {}

    def look(self, observed: ScalingInput, now: float) -> ScalingChange | None:
        """Returns the change that is due, or None. The change counts as made."""
        if not self._is_settled(observed):
            self._pressure.clear()
            self._on_fewer.clear()
            self._calm.clear()
            return None
        assert observed.standing is not None
        pressed = {role: self._pressed(observed, role) for role in ROLES if role in self._rules.bounds}
        for role, (present, fewer) in pressed.items():
            share = 1 - exp(-(now - self._looked) / PRESSURE_MEMORY_S)
            _follow(self._pressure, role, min(present, MAX_PRESSURE), share, 0.0)
            _follow(self._on_fewer, role, min(fewer, MAX_PRESSURE), share, min(fewer, MAX_PRESSURE))
            _note(self._calm, role, self._on_fewer[role] < 1.0 - REMOVAL_MARGIN, now)
            self._forgive(role, now)
        self._looked = now
        return self._growth(observed, now) or self._removal(observed, now)

    def _is_settled(self, observed: ScalingInput) -> bool:
        if observed.standing is None or observed.age > MAX_FIGURE_AGE_S:
            return False
        for role, stands in (("prefill", observed.standing.prefill), ("decode", observed.standing.decode)):
            workers = stands.workers
            if len(workers) != observed.wanted.get(role, 0) or len(stands.serving) != len(workers):
                return False
            if any(observed.age + one.age > MAX_FIGURE_AGE_S for one in workers):
                return False
        return True

    def _pressed(self, observed: ScalingInput, role: str) -> tuple[float, float]:
        assert observed.standing is not None
        workers = observed.wanted.get(role, 0)
        present = pressure(observed.standing, role, workers, self._rules.slo) or 0.0
        fewer = pressure(observed.standing, role, workers - 1, self._rules.slo) if workers > 1 else None
        return present, float("inf") if fewer is None else fewer

    def _growth(self, observed: ScalingInput, now: float) -> ScalingChange | None:
        if now - self._changed < self._rules.up:
            return None
        for role, bounds in self._rules.bounds.items():
            if observed.wanted.get(role, 0) < bounds.least:
                return self._record_change(ScalingChange(role, 1, "", f"there are fewer than {bounds.least}"), now)
        able = [
            (present, role)
            for role, present in self._pressure.items()
            if observed.wanted[role] < self._rules.bounds[role].most and present > 1.0
        ]
        if not able:
            return None
        present, role = max(able)
        if now - self._removed.get(role, -float("inf")) < REGRET_COOL_DOWNS * self._patience[role]:
            self._patience[role] = min(MAX_CALM_S, 2 * self._patience[role])
            self._regretted[role] = now
        return self._record_change(
            ScalingChange(role, 1, "", f"pressure is {present:.2f} for {observed.wanted[role]}"), now
        )

    def _removal(self, observed: ScalingInput, now: float) -> ScalingChange | None:
        if now - self._changed < self._rules.down or max(self._pressure.values()) > 1.0:
            return None
        above = [role for role, bounds in self._rules.bounds.items() if observed.wanted.get(role, 0) > bounds.most]
        able = [
            (fewer, role)
            for role, fewer in self._on_fewer.items()
            if observed.wanted[role] > self._rules.bounds[role].least
            and role in self._calm
            and now - self._calm[role] >= self._patience[role]
        ]
        if not above and not able:
            return None
        fewer, role = (0.0, above[0]) if above else min(able)
        assert observed.standing is not None
        stands = observed.standing.prefill if role == "prefill" else observed.standing.decode
        why = (
            f"there are more than {self._rules.bounds[role].most}" if above else f"pressure on one fewer is {fewer:.2f}"
        )
        self._removed[role] = now
        return self._record_change(ScalingChange(role, -1, cheapest(stands.serving), why), now)

    def _record_change(self, change: ScalingChange, now: float) -> ScalingChange:
        self._changed = now
        self._pressure.clear()
        self._on_fewer.clear()
        self._calm.clear()
        return change

    def _forgive(self, role: str, now: float) -> None:
        if now - self._regretted.get(role, now) >= REGRET_MEMORY_S:
            self._patience[role] = max(self._rules.down, self._patience[role] / 2)
            self._regretted[role] = now


def cheapest(workers: list[WorkerStanding]) -> str:
    """Returns the epoch of the worker to drain: fewest sequences, then fewest queued tokens, then fewest cache hits."""
    return min(workers, key=lambda one: (one.sequences, one.queued_tokens, one.found_tokens, one.worker)).worker


def _follow(averages: dict[str, float], role: str, value: float, share: float, first: float) -> None:
    """Moves a role's average, which begins at `first`, towards a value by `share`."""
    before = averages.get(role, first)
    averages[role] = before + share * (value - before)


def _note(since: dict[str, float], role: str, holds: bool, now: float) -> None:
    if holds:
        since.setdefault(role, now)
    else:
        since.pop(role, None)
