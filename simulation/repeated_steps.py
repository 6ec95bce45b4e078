"""Decode steps of one batch as one event: while no sequence ends and nothing comes, only the context grows.

The event's result has a token of each sequence for each of its steps. The worker learns from it as from one step. An
event that comes meanwhile ends it behind the step that runs then, as if each step were an event of its own. The next
plan computes the new tokens together, so a prompt that joins it finds a smaller budget, and what gateways hear of the
context is some steps old: that is the error.
"""

from collections.abc import Callable
from math import floor

from msgspec import structs

from engine.plan import StepPlan
from engine.schedule.chunking import Chunking
from pricing.fit import StepFit
from pricing.steps import StepCosts, StepWork


class RepeatedSteps:
    """A plan that is carried out `count` times, from `began` on, each with a token more of every sequence."""

    def __init__(
        self, plan: StepPlan, work: StepWork, count: int, began: float, seconds: Callable[[StepWork], float]
    ) -> None:
        self.plan = plan
        self.count = count
        self.began = began
        first = structs.replace(work, rows=0)  # tokens of earlier steps, which the plan computes together
        last = structs.replace(first, context=first.context + first.sequences * (count - 1))
        self.each_s = seconds(first) if count == 1 else (seconds(first) + seconds(last)) / 2

    @property
    def ends(self) -> float:
        return self.began + self.count * self.each_s

    def cut(self, now: float) -> bool:
        """Ends it behind the step that runs now; returns whether that is earlier."""
        running = max(1, floor((now - self.began) / self.each_s) + 1)
        earlier = running < self.count
        self.count = min(self.count, running)
        return earlier


class Repeats:
    """The number of steps for which the result that is applied now stands."""

    def __init__(self) -> None:
        self.count = 1


class RepeatedFit(StepFit):
    """Learns from repeated steps as from one of them."""

    def __init__(self, repeats: Repeats, seed: StepCosts) -> None:
        super().__init__(seed)
        self._repeats = repeats

    def learn(self, work: StepWork, seconds: float) -> None:
        super().learn(structs.replace(work, rows=0), seconds / self._repeats.count)


class RepeatedChunking(Chunking):
    """Learns from repeated steps as from one of them."""

    def __init__(self, repeats: Repeats, target: float, tokens_per_second: float) -> None:
        super().__init__(target, tokens_per_second)
        self._repeats = repeats

    def learn(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        super().learn(prompt_tokens, decodes, seconds / self._repeats.count)
