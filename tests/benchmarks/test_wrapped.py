"""The comparison with `generate` counts the same tokens of both, and both find the same ones."""

import re
from pathlib import Path

import pytest

from benchmarks.random_model import make
from benchmarks.wrapped import WrappedBenchmark, compare
from launcher.stages import StageDisplay


def test_each_way_is_measured_and_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "model", "tiny", spread=0.1)
    given = WrappedBenchmark(model=str(tmp_path / "model"), dtype="fp32", rounds=1, batches="1,3", prompt=9, output=5)
    compare(given, StageDisplay())
    shown = capsys.readouterr().out
    assert "first tokens equal to generate's: generate 8 of 8, transformers 8 of 8, native 8 of 8" in shown
    rows = re.findall(r"^\| (\d) x 9→5 \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", shown, re.M)
    assert [row[0] for row in rows] == ["1", "3"]
    assert all(float(number) > 0 for row in rows for number in row)
