"""Decides when a worker is added or removed, one at a time. Pure: what is seen and when goes in, a change comes out.

A worker is added where a role is pressed on average over some seconds, and removed where on such averages one fewer
would have been enough, with a margin, for as long as `down`. After either, nothing happens for a cool-down, nor while
a worker starts or drains, or is missing, nor on figures that are old. Under a load that stays as it is, a role that
has grown does not shrink again, and one that has shrunk does not grow: what pressed n - 1 workers is no load for
them. Where that prediction was wrong, a worker that was removed comes back soon; each time it does, the next one
stays for twice as long.
"""

from collections.abc import Mapping
from math import exp
from typing import NamedTuple

from launcher.autoscale.pressure import pressure
from launcher.autoscale.rules import ROLES, Rules
from pricing.standing import Standing, WorkerStanding

REMOVAL_MARGIN = 0.25
"""A worker goes if the others would be under 1 less this of pressure."""
PRESSURE_MEMORY_S = 10.0
"""Seconds after which a moment's pressure counts 1/e in the averages by which workers come and go."""
MAX_PRESSURE = 1.5
"""Pressure counts as this at most: one bad moment asks for no worker, and keeps none."""
MAX_FIGURE_AGE_S = 5.0
"""Seconds after which figures say nothing any more."""
REGRET_COOL_DOWNS = 4.0
"""A worker that is added within so many times `down` of a removal should have stayed."""
MAX_CALM_S = 3600.0
"""Seconds that a load for fewer has to last at most, however often workers came back."""
REGRET_MEMORY_S = 6 * 3600.0
"""Seconds without such a return after which the wait is halved."""


class Seen(NamedTuple):
    """Holds what is known at one moment."""

    standing: Standing | None  # None: nobody has said anything
    age: float  # s since it was seen
    wanted: Mapping[str, int]  # workers that there should be now, by role: those that start are counted


class Change(NamedTuple):
    """Says which worker is added or removed, and why."""

    role: str
    by: int  # 1 or -1
    worker: str  # epoch of the one that drains; empty where one is added
    why: str  # a clause


class Policy:
    """Follows what is seen of one deployment. `now` is local time, s."""

    def __init__(self, rules: Rules, now: float) -> None:
        """Begins as if a change had just been made: what was started first settles."""
        self._rules = rules
        self._changed = now
        self._pressure: dict[str, float] = {}  # of each role, as an average
        self._on_fewer: dict[str, float] = {}  # the same if there were one worker fewer
        self._looked = now
        self._calm: dict[str, float] = {}  # since when one worker fewer would do
        self._removed: dict[str, float] = {}  # when one was removed last
        self._patience: dict[str, float] = {role: rules.down for role in rules.bounds}  # s of calm that are asked for
        self._regretted: dict[str, float] = {}

    def look(self, seen: Seen, now: float) -> Change | None:
        """Returns the change that is due, which counts as made, or None."""
        if not self._is_settled(seen):
            self._pressure.clear()
            self._on_fewer.clear()
            self._calm.clear()
            return None
        assert seen.standing is not None
        pressed = {role: self._pressed(seen, role) for role in ROLES if role in self._rules.bounds}
        for role, (present, fewer) in pressed.items():
            share = 1 - exp(-(now - self._looked) / PRESSURE_MEMORY_S)
            _follow(self._pressure, role, min(present, MAX_PRESSURE), share, 0.0)
            _follow(self._on_fewer, role, min(fewer, MAX_PRESSURE), share, min(fewer, MAX_PRESSURE))
            _note(self._calm, role, self._on_fewer[role] < 1.0 - REMOVAL_MARGIN, now)
            self._forgive(role, now)
        self._looked = now
        return self._growth(seen, now) or self._removal(seen, now)

    def _is_settled(self, seen: Seen) -> bool:
        """Tells whether every worker that there should be serves, and all figures are fresh."""
        if seen.standing is None or seen.age > MAX_FIGURE_AGE_S:
            return False
        for role, stands in (("prefill", seen.standing.prefill), ("decode", seen.standing.decode)):
            workers = stands.workers
            if len(workers) != seen.wanted.get(role, 0) or len(stands.serving) != len(workers):
                return False
            if any(seen.age + one.age > MAX_FIGURE_AGE_S for one in workers):
                return False
        return True

    def _pressed(self, seen: Seen, role: str) -> tuple[float, float]:
        """Returns the pressure on the workers that there are, and on one fewer; infinite where that cannot be."""
        assert seen.standing is not None
        workers = seen.wanted.get(role, 0)
        present = pressure(seen.standing, role, workers, self._rules.slo) or 0.0
        fewer = pressure(seen.standing, role, workers - 1, self._rules.slo) if workers > 1 else None
        return present, float("inf") if fewer is None else fewer

    def _growth(self, seen: Seen, now: float) -> Change | None:
        if now - self._changed < self._rules.up:
            return None
        for role, bounds in self._rules.bounds.items():
            if seen.wanted.get(role, 0) < bounds.least:
                return self._made(Change(role, 1, "", f"there are fewer than {bounds.least}"), now)
        able = [
            (present, role)
            for role, present in self._pressure.items()
            if seen.wanted[role] < self._rules.bounds[role].most and present > 1.0
        ]
        if not able:
            return None
        present, role = max(able)
        if now - self._removed.get(role, -float("inf")) < REGRET_COOL_DOWNS * self._patience[role]:
            self._patience[role] = min(MAX_CALM_S, 2 * self._patience[role])
            self._regretted[role] = now
        return self._made(Change(role, 1, "", f"pressure is {present:.2f} for {seen.wanted[role]}"), now)

    def _removal(self, seen: Seen, now: float) -> Change | None:
        if now - self._changed < self._rules.down or max(self._pressure.values()) > 1.0:
            return None
        above = [role for role, bounds in self._rules.bounds.items() if seen.wanted.get(role, 0) > bounds.most]
        able = [
            (fewer, role)
            for role, fewer in self._on_fewer.items()
            if seen.wanted[role] > self._rules.bounds[role].least
            and role in self._calm
            and now - self._calm[role] >= self._patience[role]
        ]
        if not above and not able:
            return None
        fewer, role = (0.0, above[0]) if above else min(able)
        assert seen.standing is not None
        stands = seen.standing.prefill if role == "prefill" else seen.standing.decode
        why = (
            f"there are more than {self._rules.bounds[role].most}" if above else f"pressure on one fewer is {fewer:.2f}"
        )
        self._removed[role] = now
        return self._made(Change(role, -1, cheapest(stands.serving), why), now)

    def _made(self, change: Change, now: float) -> Change:
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
    """Returns the epoch of the worker whose drain costs least: fewest sequences, least to compute, few cache hits."""
    return min(workers, key=lambda one: (one.sequences, one.queued_tokens, one.found_tokens, one.worker)).worker


def _follow(averages: dict[str, float], role: str, value: float, share: float, first: float) -> None:
    """Has a role's average follow a value, which has this share; without one it begins at `first`."""
    before = averages.get(role, first)
    averages[role] = before + share * (value - before)


def _note(since: dict[str, float], role: str, holds: bool, now: float) -> None:
    """Notes since when something holds of a role, or that it does not."""
    if holds:
        since.setdefault(role, now)
    else:
        since.pop(role, None)
