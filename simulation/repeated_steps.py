"""Decode steps of one batch as one event: while no sequence ends and nothing comes, only the context grows.

An event that comes meanwhile ends the repetition behind the step that runs then. A worker learns and tells the same as
with an event for each step: a gateway sends every request to the same worker, and its answer lasts as long. Only the
tokens of these steps come together, behind the last step, and so do the blocks that the steps evict from the cache.
"""

from bisect import bisect_right
from collections.abc import Sequence

from msgspec import structs

from engine.plan import StepPlan
from pricing.step_costs.steps import StepWork
from simulation.deployment import SimulatedDevice


class RepeatedSteps:
    """A plan that is carried out `count` times, from `began` on, each with a token more of every sequence.

    `beside_s`: seconds that adapters add to each step; `proposing_s`: seconds in which the engine drafts behind each
    step. A device's seconds have to grow evenly with the context.
    """

    def __init__(
        self,
        plan: StepPlan,
        work: StepWork,
        count: int,
        began: float,
        device: SimulatedDevice,
        beside_s: float = 0.0,
        proposing_s: float = 0.0,
    ) -> None:
        self.plan = plan
        self.began = began
        self.proposing_s = proposing_s
        self._work = work  # of the first step
        self._told = 0
        alone_s = device.seconds(work)
        self._first_s = alone_s + beside_s + proposing_s
        self._growth_s = 0.0  # by which each step is longer than the one before
        self._pause_s = device.pause_s
        if count > 1:
            last = structs.replace(work, context=work.context + work.sequences * (count - 1))
            self._growth_s = (device.seconds(last) - alone_s) / (count - 1)
        self.end_behind(count)

    def end_behind(self, count: int) -> None:
        """Lets only this many steps run."""
        self.count = count
        self.next_at = self.ended_at(count)
        """When the next step may begin, s."""
        self.ends = self.next_at - self._pause_s
        self.due = self.next_at if count > 1 else self.ends
        """When the result is applied: for several steps behind the last pause, since their tokens end no answer."""

    @property
    def busy_s(self) -> float:
        """Seconds for which the device computes."""
        return self.next_at - self.began - self.count * self._pause_s

    def cut(self, now: float) -> bool:
        """Ends the repetition behind the step that runs now; returns whether this is earlier than planned."""
        running = self.ended(now) + 1
        earlier = running < self.count
        if earlier:
            self.end_behind(running)
        return earlier

    def ended(self, now: float) -> int:
        """Returns how many steps have ended, and the pauses behind them, but for the last one."""
        return bisect_right(range(1, self.count), now, key=self.ended_at)

    def computed(self, now: float) -> int:
        """Returns how many steps have ended, whether or not the pauses behind them have."""
        return bisect_right(range(1, self.count + 1), now + self._pause_s, key=self.ended_at)

    def ended_at(self, steps: int) -> float:
        """Returns when this many steps, and the pauses behind them, have ended."""
        return self.began + steps * (self._first_s + self._pause_s) + self._growth_s * steps * (steps - 1) / 2

    def untold(self, ended: int) -> tuple[StepWork, Sequence[float]]:
        """Returns the seconds of the steps that have ended since the last call, and the work of the first of these."""
        first, self._told = self._told, ended
        work = structs.replace(self._work, context=self._work.context + first * self._work.sequences)
        return work, [self._first_s + self._growth_s * step for step in range(first, ended)]
