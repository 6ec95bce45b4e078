"""Host memory that a process may still use, and the kernel's out-of-memory kills."""

import os
from pathlib import Path

from infra.memory.control_groups import ControlGroups, figure_in, number_in

UNLIMITED_BYTES = 1 << 62  # version 1 writes nearly 2^63 for no limit


def available_memory(groups: ControlGroups | None = None, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Returns the bytes that this process may still use: the kernel's estimate, or less if its groups leave less."""
    available = figure_of_meminfo(meminfo, "MemAvailable")
    if available is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(available, left_by_groups(groups or ControlGroups()))


def left_by_groups(groups: ControlGroups) -> int:
    """Returns the bytes left in the tightest control group of the process; `UNLIMITED_BYTES` without any limit.

    A group's usage includes cached pages of files. The kernel reclaims them, even recently read ones such as the
    model's; `MemAvailable` counts them as available, too.
    """
    left = [UNLIMITED_BYTES]
    for group in groups.of_version_2():
        limit, used = number_in(group / "memory.max", UNLIMITED_BYTES), number_in(group / "memory.current", 0)
        left.append(limit - used + _pages_of_files(group, ""))
    for group in groups.of_version_1("memory"):
        limit = number_in(group / "memory.limit_in_bytes", UNLIMITED_BYTES)
        used = number_in(group / "memory.usage_in_bytes", 0)
        left.append(limit - used + _pages_of_files(group, "total_"))
    return max(0, min(left))


def _pages_of_files(group: Path, prefix: str) -> int:
    return sum(figure_in(group / "memory.stat", f"{prefix}{lists}_file") for lists in ("active", "inactive"))


def figure_of_meminfo(meminfo: Path, name: str) -> int | None:
    """Returns a figure of `/proc/meminfo`, or of a NUMA node's, in bytes; None if the kernel has none (proc(5)).

    A node's lines begin with `Node N`.
    """
    try:
        lines = [line.partition(":") for line in meminfo.read_text().splitlines()]
    except OSError:
        return None
    return next((int(figure.split()[0]) << 10 for label, _, figure in lines if label.split()[-1:] == [name]), None)


def out_of_memory_kills() -> int:
    """Returns the number of processes killed for lack of memory since the boot, in any control group."""
    return figure_in(Path("/proc/vmstat"), "oom_kill")
