"""Decode steps of one batch as one event: while no sequence ends and nothing comes, only the context grows.

The event's result has a token of each sequence for each of its steps. The worker learns from it as from one step. An
event that comes meanwhile ends it behind the step that runs then, as if each step were an event of its own. The next
plan computes the new tokens together, so a prompt that joins it finds a smaller budget, and what gateways hear of the
context is some steps old: that is the error.
"""

from math import floor

from msgspec import structs

from engine.plan import StepPlan
from engine.schedule.chunking import Chunking
from pricing.fit import StepFit
from pricing.steps import StepCosts, StepWork
from simulation.deployment import SimulatedDevice


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
        self.count = count
        self.began = began
        self.proposing_s = proposing_s
        seconds = device.seconds(work)
        if count > 1:
            last = structs.replace(work, context=work.context + work.sequences * (count - 1))
            seconds = (seconds + device.seconds(last)) / 2
        self.each_s = seconds + beside_s + proposing_s + device.pause_s
        self._pause_s = device.pause_s

    @property
    def ends(self) -> float:
        return self.began + self.count * self.each_s - self._pause_s

    @property
    def busy_s(self) -> float:
        """Seconds for which the device computes."""
        return self.count * (self.each_s - self._pause_s)

    def cut(self, now: float) -> bool:
        """Ends it behind the step that runs now; returns whether that is earlier."""
        running = max(1, floor((now - self.began) / self.each_s) + 1)
        earlier = running < self.count
        self.count = min(self.count, running)
        return earlier


class Repeats:
    """The number of steps for which the result that is applied now stands, with pauses between them."""

    def __init__(self, pause_s: float) -> None:
        self.count = 1
        self._pause_s = pause_s

    def each_s(self, seconds: float) -> float:
        """Returns the seconds of one of the steps that took `seconds` together."""
        return (seconds - (self.count - 1) * self._pause_s) / self.count


class RepeatedFit(StepFit):
    """Learns from repeated steps as from one of them."""

    def __init__(self, repeats: Repeats, seed: StepCosts) -> None:
        super().__init__(seed)
        self._repeats = repeats

    def learn(self, work: StepWork, seconds: float) -> None:
        super().learn(structs.replace(work, rows=0), self._repeats.each_s(seconds))


class RepeatedChunking(Chunking):
    """Learns from repeated steps as from one of them."""

    def __init__(self, repeats: Repeats, target: float, tokens_per_second: float) -> None:
        super().__init__(target, tokens_per_second)
        self._repeats = repeats

    def learn(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        super().learn(prompt_tokens, decodes, self._repeats.each_s(seconds))
