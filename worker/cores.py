"""Counts the cores that this process may use: in a container or under taskset, fewer than the machine has."""

import os
from collections.abc import Iterator
from math import ceil

from infra.process.control_groups import ControlGroups, number_in


def available_cores(groups: ControlGroups | None = None) -> int:
    """Returns the cores in the process's affinity mask, but no more than its control groups' time in a period fills.

    A group that cannot be read limits nothing. Threads beyond the limit wait for each other after every operator.
    """
    return max(1, min([_affinity(), *_quotas(groups or ControlGroups())]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(groups: ControlGroups) -> Iterator[int]:
    """Reads what all cores may run in a period, and the period, both in μs: `cpu.max`, or version 1's two files."""
    for group in groups.of_version_2():
        try:
            quota, period = (group / "cpu.max").read_text().split()
            yield ceil(int(quota) / int(period))
        except (OSError, ValueError):
            continue  # no such limit; `max` is none
    for group in groups.of_version_1("cpu"):
        quota_us, period_us = number_in(group / "cpu.cfs_quota_us", -1), number_in(group / "cpu.cfs_period_us", 0)
        if quota_us > 0 and period_us > 0:
            yield ceil(quota_us / period_us)
