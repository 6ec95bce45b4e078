"""A process is bounded by its own control group and by all above it, in either version of the kernel's interface."""

from pathlib import Path

import pytest

from infra.memory.control_groups import ControlGroups
from infra.memory.host_memory import UNLIMITED_BYTES, available_memory, left_by_groups, out_of_memory_kills
from worker.host.cores import available_cores

GIB = 1 << 30


class Host:
    """Writes the files of control groups as the kernel shows them to a process in `own`."""

    def __init__(self, directory: Path, own: str) -> None:
        self.mounts = directory / "sys"
        (directory / "own").write_text(own)
        self.groups = ControlGroups(directory / "own", self.mounts)

    def write(self, group: str, **files: str) -> None:
        directory = self.mounts / group
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name.replace("__", ".")).write_text(text)


UNIT = "0::/system.slice/baton.service\n"


def test_a_container_of_version_2_has_its_limit_at_the_root(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/\n")
    host.write("", memory__max=f"{3 * GIB}\n", memory__current=f"{GIB}\n", cpu__max="100000 100000\n")
    assert left_by_groups(host.groups) == 2 * GIB
    assert available_cores(host.groups) == 1


def test_a_systemd_unit_has_its_limit_in_a_group_of_its_own(tmp_path: Path) -> None:
    host = Host(tmp_path, UNIT)
    host.write("", cpu__max="max 100000\n")
    host.write("system.slice", memory__max="max\n", memory__current=f"{9 * GIB}\n")
    unit = "system.slice/baton.service"
    host.write(unit, memory__max=f"{2 * GIB}", memory__current=f"{GIB}", cpu__max="50000 100000")
    assert left_by_groups(host.groups) == GIB
    assert available_cores(host.groups) == 1


def test_a_slice_bounds_the_units_in_it(tmp_path: Path) -> None:
    host = Host(tmp_path, UNIT)
    host.write("system.slice", memory__max=f"{4 * GIB}", memory__current=f"{3 * GIB}")
    host.write("system.slice/baton.service", memory__max=f"{4 * GIB}", memory__current=f"{GIB}")
    assert left_by_groups(host.groups) == GIB


def test_pages_of_files_are_given_up_for_other_memory(tmp_path: Path) -> None:
    """Those read twice too: a model that was loaded before would not fit beside its own files, else."""
    host = Host(tmp_path, "0::/\n")
    stat = f"anon 5\ninactive_file {GIB}\nactive_file {GIB // 2}\nshmem 9\n"
    host.write("", memory__max=f"{2 * GIB}", memory__current=f"{2 * GIB}", memory__stat=stat)
    assert left_by_groups(host.groups) == GIB + GIB // 2


def test_version_1_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    host = Host(tmp_path, "5:cpu,cpuacct:/here\n4:memory:/docker/1f\n0::/\n")
    host.write("memory", memory__limit_in_bytes=f"{(1 << 63) - 4096}", memory__usage_in_bytes=f"{9 * GIB}")
    stat = f"inactive_file 3\ntotal_inactive_file {GIB // 2}\nactive_file 5\ntotal_active_file {GIB // 4}\n"
    host.write(
        "memory/docker/1f", memory__limit_in_bytes=f"{2 * GIB}", memory__usage_in_bytes=f"{GIB}", memory__stat=stat
    )
    host.write("cpu/here", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    assert left_by_groups(host.groups) == GIB + GIB // 2 + GIB // 4
    assert available_cores(host.groups) == 1


def test_a_container_of_version_1_sees_its_group_as_the_root(tmp_path: Path) -> None:
    """`/proc/self/cgroup` has the host's path there, which the container's mount lacks."""
    host = Host(tmp_path, "4:memory:/docker/1f\n")
    host.write("memory", memory__limit_in_bytes=f"{GIB}", memory__usage_in_bytes="0")
    assert left_by_groups(host.groups) == GIB


@pytest.mark.parametrize("own", ["", "4:memory", "0::/gone\n", "0::/../..\n"])
def test_without_a_limit_nothing_is_bounded(own: str, tmp_path: Path) -> None:
    host = Host(tmp_path, own)
    assert left_by_groups(host.groups) == UNLIMITED_BYTES
    assert available_cores(host.groups) >= 1


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/\n")
    host.write("", memory__max="100", memory__current="200")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24000000 kB\nMemAvailable:   1000 kB\n")
    assert available_memory(host.groups, meminfo) == 0
    host.write("", memory__max="max")
    assert available_memory(host.groups, meminfo) == 1000 << 10


def test_this_machine_has_memory_and_a_count_of_kills(tmp_path: Path) -> None:
    assert 0 < available_memory() < 1 << 50
    assert available_memory(meminfo=tmp_path / "none") > 0, "no such file: half of what the machine has"
    assert out_of_memory_kills() >= 0
