"""Interleaves rounds: in each, every system runs every workload once, one after the other.

So what the machine's neighbours do in an hour happens to all of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from benchmarks.limits.workloads import Workload

WARM_UP_TOKENS = 4
"""Output tokens of the run that warms up."""
REST_LOOK_S, MAX_REST_LOOKS = 0.25, 20
MAX_RESTING_CORES = 0.05
MIN_RATED_RUN_S = 1.0
"""Shortest run, in seconds, whose share of the cores tells a rate: the clock of processes ticks every 10 ms."""


class System(Protocol):
    """Runs workloads; see `benchmarks.peers.process`."""

    name: str

    def run(self, prompts: list[list[int]], output: int) -> tuple[float, list[list[int]]]:
        """Runs all prompts at once; returns the seconds that it took, and `output` token ids of each."""

    def processor_seconds(self) -> float:
        """Returns the processor time of all its processes so far, in s."""


@dataclass
class Results:
    """Seconds by system and workload, in the order of the rounds."""

    seconds: dict[str, dict[Workload, list[float]]] = field(default_factory=dict)
    agreed: dict[str, list[bool]] = field(default_factory=dict)
    """For each prompt, whether a system's first token is the first system's."""
    idle_cores: dict[str, float] = field(default_factory=dict)
    """Largest number of cores that a system used while another was measured."""

    def note_idle(self, others: Sequence[System], before: Sequence[float], seconds: float) -> None:
        for other, earlier in zip(others, before, strict=True):
            if seconds > MIN_RATED_RUN_S:
                took = (other.processor_seconds() - earlier) / seconds
                self.idle_cores[other.name] = max(self.idle_cores.get(other.name, 0.0), took)

    def rate(self, name: str, workload: Workload) -> float:
        return median(workload.rate(each) for each in self.seconds[name][workload])

    def best(self, names: Sequence[str], workload: Workload) -> str:
        return max(names, key=lambda name: self.rate(name, workload))

    def ratio(self, ours: str, theirs: str, workload: Workload) -> float:
        pairs = zip(self.seconds[theirs][workload], self.seconds[ours][workload], strict=True)
        return median(slow / fast for slow, fast in pairs)


def rest(system: System) -> None:
    """Waits until a system has stopped computing: some poll for work at full speed for a second.

    A system that never rests is measured all the same; `Results.idle_cores` shows it.
    """
    before = system.processor_seconds()
    for _ in range(MAX_REST_LOOKS):
        time.sleep(REST_LOOK_S)
        now = system.processor_seconds()
        if now - before <= REST_LOOK_S * MAX_RESTING_CORES:
            return
        before = now


def run_rounds(
    systems: Sequence[System],
    workloads: Sequence[Workload],
    rounds: int,
    vocabulary: int,
    between: Callable[[str, int], None],
) -> Results:
    results = Results({system.name: {workload: [] for workload in workloads} for system in systems})
    steps = (rounds + 1) * len(workloads)
    for index in range(-1, rounds):  # the first round warms up
        for place, workload in enumerate(workloads):
            title = f"round {index + 1} of {rounds}" if index >= 0 else "warming up"
            between(f"{title}: {workload}", 100 * ((index + 1) * len(workloads) + place) // steps)
            prompts = workload.prompts(vocabulary, seed=index)
            turned = [systems[(turn + index) % len(systems)] for turn in range(len(systems))]
            first: dict[str, list[int]] = {}
            output = workload.output if index >= 0 else min(WARM_UP_TOKENS, workload.output)
            for system in turned:
                others = [each for each in systems if each is not system]
                before = [each.processor_seconds() for each in others]
                seconds, tokens = system.run(prompts, output)
                first[system.name] = [each[0] for each in tokens]
                if index >= 0:
                    results.seconds[system.name][workload].append(seconds)
                    results.note_idle(others, before, seconds)
                rest(system)
            for name, own in first.items():
                equal = (a == b for a, b in zip(first[systems[0].name], own, strict=True))
                results.agreed.setdefault(name, []).extend(equal)
    return results
