"""The kernels' benchmark: every row in a tiny size in the interpreter, and what its figures come to."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.kernels.__main__ import main, tune
from benchmarks.kernels.case import Case, Shape, Target, close
from benchmarks.kernels.measure import line, measure
from benchmarks.kernels.rows import KERNELS, Wanted, rows
from benchmarks.kernels.tune import Tuner
from benchmarks.limits.device_time import Limits
from kernels import tuning
from kernels.tuned_tables import own_file
from kernels.tuning import Config, tuned
from launcher.options import ROOT
from tests.waiting import LONG_DEADLINE_S

CPU = torch.device("cpu")
LIMITS = Limits(copy=100e9, multiply=1e12)


def test_the_command_interprets_whatever_the_environment_says() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels", "--size", "tiny", "--kernel", "gate"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        timeout=LONG_DEADLINE_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("| interpreter |") == len(list(rows("tiny", ["gate"])))


@pytest.mark.interpreted
def test_every_row_runs_in_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right, and beside PyTorch's operators, which give the same."""
    place = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks.kernels", "--size", "tiny", "--json", str(place)])
    assert main() == 0
    said = capsys.readouterr().out
    found = json.loads(place.read_text())
    assert [(row["kernel"], row["shape"]) for row in found["rows"]] == [
        (each.kernel, str(each.shape)) for each in rows("tiny", list(KERNELS))
    ]
    # Kernels have candidates, or name those of their tiles; products of experts are timed as `experts`.
    files = [path for path in (ROOT / "kernels").rglob("*.py") if not path.stem.endswith(("_tiles", "_products"))]
    files = [
        path for path in files if re.search(r'^(__all__ = \[")?CANDIDATE_CONFIGS\b', path.read_text(), re.MULTILINE)
    ]
    tuned_ones = {"quantized_" * (path.parent.name == "quantized") + path.stem for path in files}
    tuned_ones |= {"quantized_experts", "quantized_experts_rows"}  # whose tiles are chosen among those of experts
    assert {row["kernel"].removesuffix("_prefill") for row in found["rows"]} == tuned_ones
    assert all(
        row["seconds"] is None and not row["error"] for row in found["rows"]
    )  # an interpreter's time says nothing
    assert said.count("| interpreter |") == len(found["rows"])


def test_without_a_gpu_full_size_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks.kernels"])
    assert main() == 2
    said = "error: --size full: PyTorch finds no usable NVIDIA GPU here; --size tiny needs none\n"
    assert capsys.readouterr().err == said


def wanted(target: Target | None = None) -> Wanted:
    return Wanted("doubled", Shape(doubled, {"size": 1000}, target), "copy")


def doubled(wrong: float = 0.0, peer_wrong: float = 0.0) -> Case:
    """A row of a kernel that doubles numbers, which others can do as well."""
    x = torch.randn(1000)
    asked_for = Config({"TILE": 1})

    def run(config: Config | None) -> torch.Tensor:
        tiles = (config or tuned("doubled", "fp32", CPU, asked_for)).tiles["TILE"]
        return 2 * x + (wrong if tiles == 1 else 0.0)

    return Case(
        run,
        lambda config: close(run(config), 2 * x),
        bytes=8000,
        peers={"sum": lambda: x + x + peer_wrong, "broken": broken},
    )


def broken() -> torch.Tensor:
    raise RuntimeError("no kernel for this")


def test_a_wrong_kernel_is_not_timed() -> None:
    with pytest.raises(AssertionError, match=r"relative error .*, bound"):
        measure(wanted(), doubled(wrong=1e-3), CPU, LIMITS)


def test_peers_that_do_something_else_or_nothing_are_no_measure() -> None:
    row = measure(wanted(), doubled(), CPU, LIMITS)
    assert row.best_peer is not None and row.best_peer[0] == "sum" and row.peers["broken"] is None
    assert row.seconds and row.rate == 8000 / row.seconds and row.share == row.rate / LIMITS.copy
    assert measure(wanted(), doubled(peer_wrong=0.1), CPU, LIMITS).best_peer is None


@pytest.mark.parametrize(
    ("target", "ours", "theirs", "met"),
    [
        (Target(0.85), 9.0, 1.0, True),  # 8000 bytes in 9 s, of the 1000 that a copy moves in one
        (Target(0.85), 10.0, 20.0, False),
        (Target(), 1.0, 1.0, True),
        (Target(), 1.1, 1.0, False),
        (None, 1e9, 1.0, None),
    ],
)
def test_a_target_is_met_or_missed(
    target: Target | None, ours: float, theirs: float, met: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of the limit, or as fast as the best peer."""
    seconds = iter([ours, theirs])
    monkeypatch.setattr("benchmarks.kernels.measure.seconds_of", lambda work, device: next(seconds))
    row = measure(wanted(target), doubled(), CPU, Limits(copy=1000.0, multiply=1.0))
    assert row.met is met and ("**missed**" in line(row)) == (met is False)


def test_the_fastest_right_candidate_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong one is out, however fast; of the others, the one whose times have the least product over all rows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Card A")
    times = iter([1.0, 1.2, 3.0, 2.0])  # the first candidate is wrong in both rows: it is never timed
    monkeypatch.setattr("benchmarks.kernels.tune.seconds_of", lambda work, device: next(times))
    tuner = Tuner(CPU)
    candidates = [Config({"TILE": tile}) for tile in (1, 2, 3)]
    for _ in range(2):
        tuner.add("doubled", doubled(wrong=1.0), candidates)
    assert tuner.best() == {("doubled", "fp32"): candidates[2]}  # 1 x 3 against 1.2 x 2
    tuner.keep()
    tuning._of_device.cache_clear()
    assert tuned("doubled", "fp32", torch.device("cuda"), candidates[0]) == candidates[2]
    tuning._of_device.cache_clear()


def test_what_was_measured_is_kept_before_the_next_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may be the one in which the time, or the device, ends."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Card A")
    first = next(rows("tiny", ["gate"]))
    with pytest.raises(AttributeError, match="case"):
        tune([first, first._replace(shape=None)], CPU, seconds=60.0)  # type: ignore[arg-type]
    assert [*json.loads(own_file().read_text())["Card A"]] == ["gate"]
    tuning._of_device.cache_clear()
