"""A worker uses the cores that it was given, not those that the machine has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.memory.control_groups import ControlGroups
from tests.waiting import DEADLINE_S
from worker.host.cores import available_cores


@pytest.mark.parametrize(
    ("text", "cores"), [("50000 100000\n", 1), ("100000 100000\n", 1), ("max 100000\n", None), ("what?\n", None)]
)
def test_a_groups_quota_bounds_the_cores(text: str, cores: int | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert available_cores(ControlGroups(tmp_path / "own", tmp_path)) == (cores or len(os.sched_getaffinity(0)))


def test_a_part_of_a_core_counts_as_one(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("1 100000\n")
    assert available_cores(ControlGroups(tmp_path / "own", tmp_path)) == 1


def test_without_a_group_only_the_affinity_counts(tmp_path: Path) -> None:
    """Runs in a process of its own, for an affinity belongs to a thread, and is inherited."""
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{one}}}); from worker.host.cores import available_cores as cores"
    code += "; from infra.memory.control_groups import ControlGroups as Groups; from pathlib import Path"
    code += f"; print(cores(Groups(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}))))"
    found = subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S, capture_output=True, text=True)
    assert found.stdout == "1\n"
