"""Adapters of simulated workers: their names, and the seconds that they add to a step."""

from collections.abc import Callable

from msgspec import Struct

from contracts.adapters import HeldAdapter
from engine.plan import StepPlan
from simulation.name_digest import name_digest


def _no_seconds(rows: int, adapters: int) -> float:
    return 0.0


class SimulatedAdapters(Struct, frozen=True):
    """Adapters that a worker has loaded.

    `seconds` returns the time that adapters add to a step, from the number of its rows that use adapters and the number
    of adapters in use.
    """

    names: tuple[str, ...] = ()
    seconds: Callable[[int, int], float] = _no_seconds

    def has(self, digest: str) -> bool:
        return not digest or digest in map(name_digest, self.names)

    def held(self) -> tuple[HeldAdapter, ...]:
        return tuple(HeldAdapter(name, name, name_digest(name), fixed=True) for name in self.names)

    def step_seconds(self, plan: StepPlan) -> float:
        """Returns the seconds that a step takes for its adapters."""
        if not self.names:
            return 0.0
        adapted = [work for work in plan.works if work.adapter]
        if not adapted:
            return 0.0
        return self.seconds(sum([len(work.token_ids) for work in adapted]), len({work.adapter for work in adapted}))
