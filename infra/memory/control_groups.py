"""The Linux control groups of a process: its own and all above it, of version 1 or 2.

A container's limits lie at the root of its view. A systemd unit's limits (`MemoryMax=`, `CPUQuota=`) lie in the unit's
own group, which `/proc/self/cgroup` names (cgroups(7)).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNIFIED_CONTROLLER = ""  # controllers of the version 2 hierarchy in /proc/PID/cgroup


@dataclass(frozen=True)
class ControlGroups:
    """Finds a process's groups. `own` is its `/proc/PID/cgroup`, `mounts` the root of the group file systems."""

    own: Path = Path("/proc/self/cgroup")
    mounts: Path = Path("/sys/fs/cgroup")

    def of_version_2(self) -> Iterator[Path]:
        """Yields the directories of the process's group and its ancestors."""
        for mount in (self.mounts, self.mounts / "unified"):
            yield from self._upwards(mount, UNIFIED_CONTROLLER)

    def of_version_1(self, controller: str) -> Iterator[Path]:
        """Yields the directories of a controller's group, such as `memory`, and its ancestors."""
        yield from self._upwards(self.mounts / controller, controller)

    def _upwards(self, mount: Path, controller: str) -> Iterator[Path]:
        """Skips missing directories: a container may see its own group as the root, but the host's path in `own`."""
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
    """Returns the number in a file; `default` if there is no file or it holds a word, such as `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return default


def figure_in(path: Path, name: str) -> int:
    """Returns a named figure of a file with one `name figure` pair a line; 0 if it has none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(line[1]) for line in lines if len(line) == 2 and line[0] == name and line[1].isdigit()), 0)
