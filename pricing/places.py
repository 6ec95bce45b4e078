"""Says where a worker runs, and how near two places are to each other. Pure."""

from enum import IntEnum

from msgspec import Struct


class Place(Struct, frozen=True):
    """Names a worker's host, and what an operator calls its surroundings."""

    host: str = ""  # its name, for people
    machine: str = ""  # the same for all that share one kernel, whatever their containers call it; empty: unknown
    label: str = ""  # `--node-label`: a rack, a switch, a zone


class Nearness(IntEnum):
    """Orders how near two places are."""

    HOST = 0
    LABEL = 1
    FAR = 2


def nearness(one: Place, other: Place) -> Nearness:
    """Tells how near two places are; who says nothing of itself is far from everybody."""
    if one.machine and one.machine == other.machine:
        return Nearness.HOST
    return Nearness.LABEL if one.label and one.label == other.label else Nearness.FAR
