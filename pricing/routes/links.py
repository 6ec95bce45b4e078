"""Transfer term of the price: how fast KV passes between two workers.

Bytes per second of a link, from the first source that has a figure: the link's own measurement (the caller has it), the
median of other links between the same two machines, the median of links whose ends are equally near, a prior.
"""

from collections.abc import Iterable
from enum import IntEnum
from functools import cached_property
from math import inf
from statistics import median
from typing import NamedTuple

from msgspec import Struct


class HostLocation(Struct, frozen=True):
    """Where a worker runs, and what the operator calls its surroundings."""

    host: str = ""  # host name, for people
    machine: str = ""  # equal for all containers that share one kernel; empty: unknown
    label: str = ""  # `--node-label`: a rack, a switch, a zone


class Nearness(IntEnum):
    """Distance classes of two workers, nearest first."""

    HOST = 0
    LABEL = 1
    FAR = 2


PRIOR_BYTES_PER_SECOND = {Nearness.HOST: 3e9, Nearness.LABEL: 2.5e9, Nearness.FAR: 1.2e9}
"""Rates of links without measurements: shared memory, 25 and 10 gigabits. They are optimistic on purpose: a link that
seems slow would never be used, and so never be measured."""


def nearness(first: HostLocation, second: HostLocation) -> Nearness:
    """Returns the distance class of two locations; an unknown location is far from every other."""
    if first.machine and first.machine == second.machine:
        return Nearness.HOST
    return Nearness.LABEL if first.label and first.label == second.label else Nearness.FAR


def transfer_seconds(size: float, bytes_per_second: float) -> float:
    """Returns the seconds that `size` bytes take over a link; infinite if its rate is 0."""
    if size <= 0:
        return 0.0
    return size / bytes_per_second if bytes_per_second > 0 else inf


class MeasuredLink(NamedTuple):
    """Rate of one link, measured while something was waiting to be sent; 0: not measured."""

    sender: HostLocation
    receiver: HostLocation
    bytes_per_second: float


class LinkRates:
    """Medians of measured links: by pair of machines, and by distance class."""

    def __init__(self, measured: Iterable[MeasuredLink]) -> None:
        """`measured` is read when the first rate is estimated: most links have a measurement of their own."""
        self._measured = measured

    def seconds(self, size: float, rate: float, sender: HostLocation, receiver: HostLocation) -> float:
        """Estimates the seconds that `size` bytes take; `rate`: the link's own bytes per second, 0: not measured."""
        return transfer_seconds(size, rate or self.between(sender, receiver))

    def between(self, sender: HostLocation, receiver: HostLocation) -> float:
        """Estimates the bytes per second of a link without a measurement of its own.

        The prior is lowered to the rates of nearer links, where those are slower.
        """
        by_machines, by_nearness = self._medians
        near = nearness(sender, receiver)
        found = by_machines.get((sender.machine, receiver.machine), by_nearness.get(near))
        nearer = (rate for other, rate in by_nearness.items() if other < near)
        return min([PRIOR_BYTES_PER_SECOND[near], *nearer]) if found is None else found

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
