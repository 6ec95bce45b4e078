"""How many cores this process may use, which in a container or under taskset are fewer than the machine has."""

import os
from math import ceil
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = CGROUP) -> int:
    """Cores in the process's affinity mask, but no more than its control group's time in one period fills.

    Threads beyond that wait for each other at the end of every operator.
    """
    return max(1, min(_affinity(), _quota(cgroup)))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(cgroup: Path) -> int:
    """From `cpu.max`: microseconds of all cores in a period, and the period; `max` is no limit (cgroup v2)."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return os.cpu_count() or 1 if quota == "max" else ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return os.cpu_count() or 1
