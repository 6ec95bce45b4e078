"""Says how fast KV passes between two workers: as it was measured, else as between others that are as near. Pure."""

from collections.abc import Iterable
from functools import cached_property
from statistics import median
from typing import NamedTuple

from pricing.places import Nearness, Place, nearness

PRIOR = {Nearness.HOST: 3e9, Nearness.LABEL: 2.5e9, Nearness.FAR: 1.2e9}
"""Bytes per second where nothing was measured: shared memory, 25 and 10 gigabits. A link that is taken for slower than
it is would never be used, and so never be measured."""


class Measured(NamedTuple):
    """Says what went over a link, while something was to be sent."""

    sender: Place
    receiver: Place
    bytes_per_second: float


class LinkRates:
    """Holds what was measured, in medians: by pair of machines, and by how near their ends are."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        """Reads `measured` when a rate is first asked for: most links have one of their own."""
        self._measured = measured

    def between(self, sender: Place, receiver: Place) -> float:
        """Returns the bytes per second to reckon with on a link that was not measured itself.

        Those of other links between the same machines, else of links whose ends are as near, else the prior, or less
        if links of nearer ends have less.
        """
        by_machines, by_nearness = self._medians
        near = nearness(sender, receiver)
        found = by_machines.get((sender.machine, receiver.machine), by_nearness.get(near))
        nearer = (rate for other, rate in by_nearness.items() if other < near)
        return min([PRIOR[near], *nearer]) if found is None else found

    @cached_property
    def _medians(self) -> tuple[dict[tuple[str, str], float], dict[Nearness, float]]:
        by_machines: dict[tuple[str, str], list[float]] = {}
        by_nearness: dict[Nearness, list[float]] = {}
        for sender, receiver, rate in self._measured:
            if rate > 0:
                by_nearness.setdefault(nearness(sender, receiver), []).append(rate)
                if sender.machine and receiver.machine:
                    by_machines.setdefault((sender.machine, receiver.machine), []).append(rate)
        between = {machines: median(rates) for machines, rates in by_machines.items()}
        return between, {near: median(rates) for near, rates in by_nearness.items()}
