"""Nodes as the kernel's files describe them, on hosts of 1, 2 and 8 nodes."""

from pathlib import Path

import pytest

from infra.memory.numa_nodes import allowed_nodes, memory_nodes, numbers_in, usable_nodes


def lay_out(root: Path, cpulists: dict[int, str], has_memory: str) -> Path:
    (root / "online").write_text(",".join(map(str, cpulists)) + "\n")
    (root / "has_memory").write_text(has_memory + "\n")
    for number, cpulist in cpulists.items():
        (root / f"node{number}").mkdir()
        (root / f"node{number}" / "cpulist").write_text(cpulist + "\n")
        figures = {"MemFree": 5 + number, "Active(file)": 3, "Active": 99, "Inactive(file)": 2}
        lines = [f"Node {number} {name}: {kb} kB\n" for name, kb in figures.items()]
        (root / f"node{number}" / "meminfo").write_text("".join(lines))
    return root


EIGHT = {number: f"{8 * number}-{8 * number + 7},{64 + 8 * number}-{64 + 8 * number + 7}" for number in range(8)}


@pytest.mark.parametrize(
    ("cpulists", "has_memory", "cores", "allowed", "expected"),
    [
        ({0: "0-1"}, "0", range(2), "0", [0]),
        ({0: "0-3", 1: "4-7"}, "0-1", range(8), "0-1", [0, 1]),
        ({0: "0-3", 1: "4-7"}, "0-1", range(4, 8), "0-1", [1]),  # taskset
        ({0: "0-3", 1: "4-7"}, "0-1", range(8), "1", [1]),  # cpuset.mems
        ({0: "0-3", 1: "4-7"}, "0", range(8), "0-1", [0]),  # a node without memory
        ({0: "0-3", 1: "4-7", 2: ""}, "0-2", range(8), "0-2", [0, 1]),  # a node without cores
        ({0: "0-3", 2: "4-5,7"}, "0,2", [0, 7], "0,2", [0, 2]),  # node 1 and core 6 are offline
        (EIGHT, "0-7", range(128), "0-7", list(range(8))),
        (EIGHT, "0-7", [*range(8, 24), 79], "0-7", [1, 2]),  # a container of two nodes' cores, and one's sibling
        (EIGHT, "0,4", range(128), "0-7", [0, 4]),
    ],
)
def test_a_process_uses_the_nodes_of_its_cores_that_it_may_take_memory_of(
    tmp_path: Path, cpulists: dict[int, str], has_memory: str, cores: range, allowed: str, expected: list[int]
) -> None:
    nodes = memory_nodes(lay_out(tmp_path, cpulists, has_memory))
    assert [node.number for node in nodes] == list(cpulists)
    (tmp_path / "status").write_text(f"Name:\tpython\nMems_allowed:\tff\nMems_allowed_list:\t{allowed}\n")
    usable = usable_nodes(nodes, cores, allowed_nodes(tmp_path / "status"))
    assert [node.number for node in usable] == expected
    assert all(node.cores == numbers_in(cpulists[node.number]) & set(cores) for node in usable)
    assert [node.available_bytes for node in usable] == [(10 + number) << 10 for number in expected]


def test_a_host_that_describes_no_nodes_has_none(tmp_path: Path) -> None:
    assert memory_nodes(tmp_path) == [] and allowed_nodes(tmp_path / "status") == set()
    assert memory_nodes(lay_out(tmp_path, {0: "x"}, "0")) == []
    assert usable_nodes([], range(2), [0]) == []


def test_this_hosts_nodes_have_this_processs_cores() -> None:
    nodes = memory_nodes()
    assert not nodes or {node.number for node in nodes if node.has_memory} & allowed_nodes()


def test_lists_of_the_kernel() -> None:
    assert numbers_in("0-2,8\n") == {0, 1, 2, 8} and numbers_in("\n") == set()
