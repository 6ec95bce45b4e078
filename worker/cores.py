"""Counts the cores that this process may use: in a container or under taskset, fewer than the machine has."""

import os
from math import ceil
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = CGROUP) -> int:
    """Returns the cores in the process's affinity mask, but no more than its control group's time in one period fills.

    A group that cannot be read limits nothing. Threads beyond the limit wait for each other after every operator.
    """
    return max(1, min(_affinity(), _quota(cgroup)))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(cgroup: Path) -> int:
    """Reads `cpu.max` (cgroup v2): μs that all cores may run in a period, `max` for no limit; and the period, μs."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return os.cpu_count() or 1 if quota == "max" else ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return os.cpu_count() or 1
