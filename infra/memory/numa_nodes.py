"""The NUMA nodes of a host, and those whose cores and memory a process may use.

The kernel gives a page to the node of the thread that touches it first. A model that one thread loads would lie on one
node, and the threads of the other nodes would read all weights through one memory controller.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from infra.memory.host_memory import figure_of_meminfo

NODES_DIRECTORY = Path("/sys/devices/system/node")
OWN_STATUS_FILE = Path("/proc/self/status")
ALLOWED_FIELD = "Mems_allowed_list:"
AVAILABLE_FIELDS = "MemFree", "Active(file)", "Inactive(file)"
"""Figures of a node's meminfo, whose pages a new process may take: the kernel reclaims pages of files."""


class MemoryNode(NamedTuple):
    """A node that is online."""

    number: int
    cores: frozenset[int]  # those that are online
    has_memory: bool
    available_bytes: int = 0


def memory_nodes(root: Path = NODES_DIRECTORY) -> list[MemoryNode]:
    """Reads the nodes in their order; none where the kernel does not know NUMA."""
    with suppress(OSError, ValueError):
        with_memory = numbers_in((root / "has_memory").read_text())
        return [
            MemoryNode(number, frozenset(numbers_in((place / "cpulist").read_text())), number in with_memory, free)
            for number in sorted(numbers_in((root / "online").read_text()))
            for place in [root / f"node{number}"]
            for free in [sum(figure_of_meminfo(place / "meminfo", field) or 0 for field in AVAILABLE_FIELDS)]
        ]
    return []


def allowed_nodes(status: Path = OWN_STATUS_FILE) -> set[int]:
    """Returns the nodes whose memory this process may take: a cpuset may have fewer than the host."""
    with suppress(OSError, ValueError):
        for line in status.read_text().splitlines():
            if line.startswith(ALLOWED_FIELD):
                return numbers_in(line.removeprefix(ALLOWED_FIELD))
    return set()


def usable_nodes(nodes: Iterable[MemoryNode], cores: Iterable[int], allowed: Iterable[int]) -> list[MemoryNode]:
    """Returns the nodes with memory for a process that runs on `cores`, each with those of its cores.

    Memory without cores, such as an expander's, is slower than the others' and takes no part.
    """
    own, may = frozenset(cores), set(allowed)
    return [
        node._replace(cores=node.cores & own)
        for node in nodes
        if node.has_memory and node.cores & own and node.number in may
    ]


def numbers_in(text: str) -> set[int]:
    """Parses a list of the kernel's, such as `0-3,8`. Raises `ValueError`."""
    numbers: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
