"""Divides the GPUs of a host among workers, so that the GPUs of a worker have the fastest links to each other."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from infra.process.nvidia_driver import nvidia_smi

ESCAPE_REGEX = re.compile(r"\x1b\[[0-9;]*m")
GPU_REGEX = re.compile(r"GPU\d+")
WORST_FIRST = ("SYS", "NODE", "PHB", "PXB", "PIX")
"""Ways between two GPUs in `nvidia-smi topo -m`, through ever fewer bridges; NV4 says four NVLinks."""

Links = Mapping[tuple[int, int], int]
"""How fast the way between two GPUs is, by their numbers, the smaller first; more is faster."""


def gpu_links() -> Links:
    """Returns the links between the GPUs of this host, as the driver's program numbers them; empty if it is silent."""
    return links_in(nvidia_smi("topo", "-m"))


def links_in(matrix: str) -> Links:
    """Reads the matrix of `nvidia-smi topo -m`."""
    rows = [ESCAPE_REGEX.sub("", line).split() for line in matrix.splitlines()]
    named = {row[0]: row[1:] for row in rows if row and GPU_REGEX.fullmatch(row[0]) and "X" in row[1:]}
    found = {}
    for first, ways in enumerate(named.values()):
        for second, way in enumerate(ways[: len(named)]):
            if first < second:
                found[first, second] = _speed(way)
    return found


def _speed(way: str) -> int:
    if way.startswith("NV") and way[2:].isdecimal():
        return len(WORST_FIRST) + int(way[2:])
    return WORST_FIRST.index(way) if way in WORST_FIRST else 0


def divided(numbers: Sequence[int], widths: Sequence[int], links: Links) -> list[tuple[int, ...]]:
    """Returns the GPUs of each worker, none of them twice; `widths`: how many each gets, no more than there are in all.

    The widest workers choose first: the GPUs whose slowest way is fastest, then with the most links.
    """
    assert sum(widths) <= len(numbers), "the target refuses workers of more GPUs than there are"
    free, given = list(numbers), {}

    def worth(group: tuple[int, ...]) -> tuple[int, int]:
        speeds = [links.get((min(pair), max(pair)), 0) for pair in combinations(group, 2)]
        return min(speeds, default=0), sum(speeds)

    for worker in sorted(range(len(widths)), key=lambda worker: -widths[worker]):
        group = max(combinations(free, widths[worker]), key=worth)  # of equal groups the first
        given[worker] = group
        free = [number for number in free if number not in group]
    return [given[worker] for worker in range(len(widths))]
