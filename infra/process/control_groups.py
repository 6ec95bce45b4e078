"""Finds the Linux control groups that bound a process: its own and all above it, of version 1 or 2.

A container's limits lie at the root of what it sees; those of a systemd unit (`MemoryMax=`, `CPUQuota=`) lie in a
group of the unit's own, which `/proc/self/cgroup` names (cgroups(7)).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNIFIED_CONTROLLER = ""  # the controllers that /proc/PID/cgroup names for the only hierarchy of version 2


@dataclass(frozen=True)
class ControlGroups:
    """Reads files of the groups that a process is in. `own` is its `/proc/PID/cgroup`, `mounts` where groups lie."""

    own: Path = Path("/proc/self/cgroup")
    mounts: Path = Path("/sys/fs/cgroup")

    def of_version_2(self) -> Iterator[Path]:
        """Yields the directories of the process's group and of the groups above it."""
        for mount in (self.mounts, self.mounts / "unified"):
            yield from self._upwards(mount, UNIFIED_CONTROLLER)

    def of_version_1(self, controller: str) -> Iterator[Path]:
        """Yields the directories of the process's group of one controller, `memory` say, and of the groups above."""
        yield from self._upwards(self.mounts / controller, controller)

    def _upwards(self, mount: Path, controller: str) -> Iterator[Path]:
        """A container may see its own group as the root while `own` has the host's path: what is not there is left."""
        path = PurePosixPath(self._path(controller).lstrip("/"))
        for part in (path, *path.parents):
            if (mount / part).is_dir():
                yield mount / part

    def _path(self, controller: str) -> str:
        try:
            lines = [line.split(":", 2) for line in self.own.read_text().splitlines()]
        except OSError:
            return ""
        return next((line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")), "")


def number_in(path: Path, default: int) -> int:
    """Returns the number that a file holds; `default` where there is no such file or it holds a word, such as `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return default


def figure_in(path: Path, name: str) -> int:
    """Returns the figure behind `name` in a file with one name and one figure a line; 0 where it has none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(line[1]) for line in lines if len(line) == 2 and line[0] == name and line[1].isdigit()), 0)
