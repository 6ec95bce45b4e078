"""Decode steps of one batch as one event: while no sequence ends and nothing comes, only the context grows.

The event's result has a token of each sequence for each of its steps. An event that comes meanwhile ends it behind the
step that runs then, and a gateway that asks meanwhile hears of the steps that have ended, as if each were an event of
its own. What stays different is what the worker learns of its costs: from all these steps as from one, and only when
the last one has ended.
"""

from bisect import bisect_right

from msgspec import structs

from engine.plan import StepPlan
from engine.schedule.chunking import Chunking
from pricing.routes.backlog import Backlog
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepCosts, StepWork
from simulation.deployment import SimulatedDevice

STEPS_IN_AVERAGES = 16
"""Equal steps after which an average of them is within a hundredth of their time."""


class RepeatedSteps:
    """A plan that is carried out `count` times, from `began` on, each with a token more of every sequence.

    `beside_s`: seconds of each step for adapters; `proposing_s`: those of the engine's draft tokens behind it.
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
        self.work = work  # of the first step
        self.count = count
        self.began = began
        self.proposing_s = proposing_s
        self._first_s = device.seconds(work) + beside_s + proposing_s
        self._growth_s = 0.0  # by which each step is longer than the one before
        self._pause_s = device.pause_s
        if count > 1:
            last = structs.replace(work, context=work.context + work.sequences * (count - 1))
            self._growth_s = (device.seconds(last) - device.seconds(work)) / (count - 1)

    @property
    def ends(self) -> float:
        return self._ended_at(self.count) - self._pause_s

    @property
    def busy_s(self) -> float:
        """Seconds for which the device computes."""
        return self.ends - self.began - (self.count - 1) * self._pause_s

    def cut(self, now: float) -> bool:
        """Ends it behind the step that runs now; returns whether that is earlier."""
        running = self._ended(now) + 1
        earlier = running < self.count
        self.count = min(self.count, running)
        return earlier

    def shown(self, backlog: Backlog, now: float) -> Backlog:
        """Returns what the worker shows now, of what it showed when the first step began."""
        ended = self._ended(now)
        if not ended:
            return backlog
        context = backlog.context + ended * backlog.sequences
        return structs.replace(backlog, context=context, age_ms=1000 * (now - self._ended_at(ended)))

    def _ended_at(self, steps: int) -> float:
        """Returns when this many steps, and the pauses behind them, have ended."""
        return self.began + steps * (self._first_s + self._pause_s) + self._growth_s * steps * (steps - 1) / 2

    def _ended(self, now: float) -> int:
        return bisect_right(range(1, self.count), now, key=self._ended_at)


class Repeats:
    """The number of steps for which the result that is applied now stands, with pauses between them."""

    def __init__(self, pause_s: float) -> None:
        self.count = 1
        self._pause_s = pause_s

    def each_s(self, seconds: float) -> float:
        """Returns the mean seconds of the steps that took `seconds` together."""
        return (seconds - (self.count - 1) * self._pause_s) / self.count


class RepeatedFit(StepFit):
    """Learns from repeated steps as from the mean one."""

    def __init__(self, repeats: Repeats, seed: StepCosts) -> None:
        super().__init__(seed)
        self._repeats = repeats

    def learn(self, work: StepWork, seconds: float) -> None:
        further = (self._repeats.count - 1) * work.sequences // 2
        super().learn(structs.replace(work, context=work.context + further), self._repeats.each_s(seconds))


class RepeatedChunking(Chunking):
    """Learns from each of repeated steps: the average of few would be too old."""

    def __init__(self, repeats: Repeats, target: float, tokens_per_second: float) -> None:
        super().__init__(target, tokens_per_second)
        self._repeats = repeats

    def learn(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        for _ in range(min(self._repeats.count, STEPS_IN_AVERAGES)):
            super().learn(prompt_tokens, decodes, self._repeats.each_s(seconds))
