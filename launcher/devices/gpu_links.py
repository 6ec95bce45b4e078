"""Divides the GPUs of a host among workers, so that the GPUs of a worker have the fastest links to each other."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from infra.process.nvidia_driver import nvidia_smi

ESCAPE_REGEX = re.compile(r"\x1b\[[0-9;]*m")
GPU_REGEX = re.compile(r"GPU\d+")
SLOWEST_LINKS_FIRST = ("SYS", "NODE", "PHB", "PXB", "PIX")
"""Connections over PCIe in `nvidia-smi topo -m`, from many bridges to one. `NV4` is faster: four NVLinks."""

Links = Mapping[tuple[int, int], int]
"""Rank of the connection of two GPUs, by their numbers, the smaller first. A higher rank is faster."""


def gpu_links() -> Links:
    """Returns the links between the GPUs of this host, as nvidia-smi numbers them; empty without its answer."""
    return links_in(nvidia_smi("topo", "-m"))


def links_in(matrix: str) -> Links:
    """Parses the matrix that `nvidia-smi topo -m` prints."""
    rows = [ESCAPE_REGEX.sub("", line).split() for line in matrix.splitlines()]
    named = {row[0]: row[1:] for row in rows if row and GPU_REGEX.fullmatch(row[0]) and "X" in row[1:]}
    found = {}
    for first, links in enumerate(named.values()):
        for second, link in enumerate(links[: len(named)]):
            if first < second:
                found[first, second] = _rank(link)
    return found


def _rank(link: str) -> int:
    if link.startswith("NV") and link[2:].isdecimal():
        return len(SLOWEST_LINKS_FIRST) + int(link[2:])
    return SLOWEST_LINKS_FIRST.index(link) if link in SLOWEST_LINKS_FIRST else 0


def divided(numbers: Sequence[int], widths: Sequence[int], links: Links) -> list[tuple[int, ...]]:
    """Divides the GPUs with these `numbers` among workers, of which each gets a number of GPUs given by `widths`.

    The workers with the most GPUs choose first. They take the GPUs whose slowest link is fastest, and of several such
    groups the one with the largest sum of ranks.
    """
    assert sum(widths) <= len(numbers), "the target refuses workers of more GPUs than there are"
    free, given = list(numbers), {}

    def link_ranks(group: tuple[int, ...]) -> tuple[int, int]:
        ranks = [links.get((min(pair), max(pair)), 0) for pair in combinations(group, 2)]
        return min(ranks, default=0), sum(ranks)

    for worker in sorted(range(len(widths)), key=lambda worker: -widths[worker]):
        group = max(combinations(free, widths[worker]), key=link_ranks)  # of equal groups the first
        given[worker] = group
        free = [number for number in free if number not in group]
    return [given[worker] for worker in range(len(widths))]
