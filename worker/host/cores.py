"""Counts the cores that this process may use; containers and taskset have fewer than the machine."""

import os
from collections.abc import Iterator
from math import ceil

from infra.memory.control_groups import ControlGroups, number_in


def available_cores(groups: ControlGroups | None = None) -> int:
    """Returns the cores of the process's affinity mask, at most the CPU quota of its control groups.

    Unreadable groups are ignored. Threads beyond the quota would wait for each other after every operator.
    """
    return max(1, min([_affinity(), *_quotas(groups or ControlGroups())]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(groups: ControlGroups) -> Iterator[int]:
    """Yields quota / period of each limited group, from `cpu.max` or version 1's two files, both in μs."""
    for group in groups.of_version_2():
        try:
            quota, period = (group / "cpu.max").read_text().split()
            yield ceil(int(quota) / int(period))
        except (OSError, ValueError):
            continue  # `max`: no limit
    for group in groups.of_version_1("cpu"):
        quota_us, period_us = number_in(group / "cpu.cfs_quota_us", -1), number_in(group / "cpu.cfs_period_us", 0)
        if quota_us > 0 and period_us > 0:
            yield ceil(quota_us / period_us)
