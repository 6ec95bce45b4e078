"""The NUMA nodes of a host, and those over which a process's memory is interleaved.

The kernel gives a page to the node of the thread that touches it first. A model that one thread loads would lie on one
node, and the threads of the other nodes would read all weights through one memory controller.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

NODES_DIRECTORY = Path("/sys/devices/system/node")
OWN_STATUS_FILE = Path("/proc/self/status")
ALLOWED_FIELD = "Mems_allowed_list:"


class MemoryNode(NamedTuple):
    """A node that is online."""

    number: int
    cores: frozenset[int]  # those that are online
    has_memory: bool


def memory_nodes(root: Path = NODES_DIRECTORY) -> list[MemoryNode]:
    """Reads the nodes in their order; none where the kernel does not know NUMA."""
    with suppress(OSError, ValueError):
        with_memory = numbers_in((root / "has_memory").read_text())
        return [
            MemoryNode(
                number, frozenset(numbers_in((root / f"node{number}" / "cpulist").read_text())), number in with_memory
            )
            for number in sorted(numbers_in((root / "online").read_text()))
        ]
    return []


def allowed_nodes(status: Path = OWN_STATUS_FILE) -> set[int]:
    """Returns the nodes whose memory this process may take: a cpuset may have fewer than the host."""
    with suppress(OSError, ValueError):
        for line in status.read_text().splitlines():
            if line.startswith(ALLOWED_FIELD):
                return numbers_in(line.removeprefix(ALLOWED_FIELD))
    return set()


def interleaved_nodes(nodes: Iterable[MemoryNode], cores: Iterable[int], allowed: Iterable[int]) -> list[int]:
    """Returns the nodes with memory for a process that runs on `cores`; none if its memory lies on one node anyway.

    Memory without cores, such as an expander's, is slower than the others' and takes no part.
    """
    own, may = set(cores), set(allowed)
    found = [node.number for node in nodes if node.has_memory and node.cores & own and node.number in may]
    return found if len(found) > 1 else []


def numbers_in(text: str) -> set[int]:
    """Parses a list of the kernel's, such as `0-3,8`. Raises `ValueError`."""
    numbers: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
