"""The comparison with `generate` counts the same tokens of all systems, and all find the same tokens."""

import re
from pathlib import Path

import pytest

from benchmarks.models.random_model import make
from benchmarks.steps.wrapped import WrappedBenchmark, compare
from launcher.stages import StageDisplay


def test_each_way_is_measured_and_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "model", "tiny", spread=0.1)
    given = WrappedBenchmark(model=str(tmp_path / "model"), dtype="fp32", rounds=2, batches="1,3", prompt=9, output=5)
    compare(given, StageDisplay())
    number = r" \| ([\d.]+)"
    rows = re.findall(rf"^\| (\d) x 9→5{5 * number} \| (.*) \|$", capsys.readouterr().out, re.M)
    assert [(row[0], row[-1]) for row in rows] == [("1", "2 of 2"), ("3", "6 of 6")]
    assert all(float(cell) > 0 for row in rows for cell in row[1:-1])
