"""Stages run one after the other, within their time, whatever becomes of the others; a second call goes on."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import main, to_run
from benchmarks.gpu_hour import packages, small_kernels
from benchmarks.gpu_hour.running import Outcome
from benchmarks.gpu_hour.stages import PART_ONE, PART_THREE, PART_TWO, ROOT, STAGES, Stage
from kernels.tuned_tables import own_file
from tests.waiting import alive, wait_until

TABLE = "print('| a | b |'); print('| --- | --- |'); print('| 1 | 2 |'); print('done')"
STAND_IN = """#!/bin/sh
[ "$*" = "${*#*--tool memcheck}" ] && exit 9
for each in "$@"; do [ "$before" = --kernel ] && kernel=$each; before=$each; done
echo "| kernel | shape | format | found |"
echo "| $kernel, own allocations $PYTORCH_NO_CUDA_MEMORY_CACHING |"
echo "ERROR SUMMARY: 1 error"
exit 3
"""
"""Of NVIDIA's checker, which needs a GPU: it says how it was called."""
MAX_OUTPUT_CHARACTERS = 12_000
"""Characters of a call's output that are read at most."""


def python(name: str, code: str, limit_s: float = 60.0, result: str = "", needs: tuple[str, ...] = ()) -> Stage:
    return Stage(name, ("-c", code), limit_s, needs, result=result)


@pytest.fixture(autouse=True)
def _tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own_file().parent.mkdir(parents=True)


def run(out: Path, stages: Sequence[Stage], monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--out", str(out), *options])
    return main(stages)


def statuses(out: Path) -> dict[str, str]:
    return {name: stage["status"] for name, stage in json.loads((out / "results.json").read_text()).items()}


def waits(pid: Path) -> str:
    half = pid.with_suffix(".half")
    written = f"from pathlib import Path; half = Path({str(half)!r}); half.write_text(str(os.getpid()));"
    return f"import os, signal; {written} half.rename({str(pid)!r}); signal.pause()"


def test_a_stage_that_fails_crashes_or_hangs_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that hangs is ended with the process that it has started."""
    pid = tmp_path / "pid"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits(pid)!r}])"
    made = "import json, sys; json.dump({'versions': 'card A', 'limits': 7}, open('{work}/x.json', 'w'));" + TABLE
    stages = [
        python("fails", "import no_such_package"),
        python("crashes", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
        python("hangs", child, limit_s=4.0),
        python("half", "open('{work}/x.json', 'w').write('[1'); raise SystemExit(3)", result="x.json"),
        python("works", made, result="x.json"),
    ]
    own_file().write_text("{}")
    out = tmp_path / "out"
    assert run(out, stages, monkeypatch) == 1
    wait_until(lambda: not alive(int(pid.read_text())), "what the stage has started to be gone")
    assert statuses(out) == {
        "fails": "failed with status 1",
        "crashes": "crashed by SIGSEGV",
        "hangs": "out of time",
        "half": "failed with status 3",
        "works": "passed",
    }
    page = (out / "results.md").read_text()
    assert "ModuleNotFoundError: No module named 'no_such_package'" in page
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |\n\ncard A; limits 7\n" in page
    assert "==== passed after" in (out / "log.txt").read_text() and (out / "tuned.json").read_text() == "{}"


def test_a_stage_ends_with_a_call_that_is_killed(tmp_path: Path) -> None:
    """Nobody is left who could end it, and the next call measures on the same GPU."""
    pid = tmp_path / "pid"
    call = f"""
import sys
from benchmarks.gpu import main
from benchmarks.gpu_hour.stages import Stage
sys.argv = ["gpu", "--out", {str(tmp_path)!r}]
main([Stage("waits", ("-c", {waits(pid)!r}), 60, ())])
"""
    with subprocess.Popen([sys.executable, "-c", call], cwd=ROOT) as process:
        wait_until(pid.exists, "the stage to run")
        process.kill()
    wait_until(lambda: not alive(int(pid.read_text())), "the stage to be gone")


def test_a_second_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, flag = tmp_path / "runs", tmp_path / "flag"
    count = f"open({str(runs)!r}, 'a').write('x')"
    stages = [python("once", count), python("later", f"open({str(flag)!r})")]
    out = tmp_path / "out"
    assert run(out, stages, monkeypatch) == 1
    flag.touch()
    assert run(out, stages, monkeypatch) == 0
    assert runs.read_text() == "x" and statuses(out) == {"once": "passed", "later": "passed"}
    assert run(out, stages, monkeypatch, "--again", "once") == 0
    assert runs.read_text() == "xx"
    assert run(out, stages, monkeypatch, "--only", "once") == 0  # who asks for a stage by name wants it again
    assert runs.read_text() == "xxx"


def test_what_never_ran_comes_before_what_did_not_pass() -> None:
    """A stage that hangs in every call must not keep the others from their turn."""
    stages = [python(name, "") for name in ("passed", "failed", "new", "wanted")]
    outcomes = {"passed": Outcome("passed"), "failed": Outcome("out of time"), "wanted": Outcome("passed")}
    assert [stage.name for stage in to_run(stages, outcomes, ["wanted"])] == ["wanted", "new", "failed"]


def test_a_stage_that_may_outlast_the_call_waits_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of a call runs all the same: it might fit into none."""
    stages = [python("long", TABLE, limit_s=600), python("longer", TABLE, limit_s=700), python("short", TABLE, 5)]
    assert run(tmp_path, stages, monkeypatch, "--minutes", "1") == 1
    assert statuses(tmp_path) == {"long": "passed", "short": "passed"}
    assert "longer: for the next call, it may take 700 s of " in capsys.readouterr().out
    assert run(tmp_path, stages, monkeypatch, "--minutes", "0", "--again", "short") == 1
    assert [*statuses(tmp_path)] == ["long", "short"]


def test_a_stage_whose_wheels_are_missing_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.WHEELS, "some-wheel", "no_such_module")
    without = python("without", TABLE, needs=("some-wheel",))
    program = Stage("program", ("-c", TABLE), 60, (), programs=("no-such-program",))
    assert run(tmp_path, [without, program], monkeypatch) == 1
    assert statuses(tmp_path) == {
        "without": "left out, not installed here: some-wheel",
        "program": "left out, not installed here: no-such-program",
    }


def test_configs_that_were_measured_on_a_machine_that_is_gone_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, tuned = tmp_path / "out", own_file()
    stages = [python("tune", f"open({str(tuned)!r}, 'w').write('7')"), python("after", f"open({str(tuned)!r})")]
    assert run(out, stages, monkeypatch, "--only", "tune") == 0
    tuned.unlink()
    assert run(out, stages, monkeypatch) == 0 and tuned.read_text() == "7"


def test_a_part_fits_into_one_call() -> None:
    for part in (PART_ONE, PART_TWO, PART_THREE):
        assert sum(stage.limit_s for stage in part) <= 60 * gpu.USUAL_MINUTES
    assert gpu.PARTS == {"1": PART_ONE, "2": PART_TWO, "3": PART_THREE}
    assert len({stage.name for stage in STAGES}) == len(STAGES)


def test_every_kernel_is_in_one_stage_and_every_test_is_there() -> None:
    found = (ROOT / "tests" / "kernels").rglob("test_*.py")
    tests = [path for path in found if "device: torch.device" in path.read_text()]
    told = [part for stage in STAGES for part in stage.command if part.startswith("tests/kernels/")]
    assert sorted(told) == sorted(str(path.relative_to(ROOT)) for path in tests)
    for stage in STAGES:
        for part in stage.command:
            place, _, test = part.partition("::")
            if place.startswith("tests/"):
                assert (ROOT / place).exists(), part
                assert not test or f"def {test.partition('[')[0]}(" in (ROOT / place).read_text(), part


def test_it_runs_as_a_file_too() -> None:
    """From anywhere, with nothing but the standard library."""
    result = subprocess.run(
        [sys.executable, "-S", str(ROOT / "benchmarks" / "gpu.py"), "--list", "--part", "1"],
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == [stage.name for stage in PART_ONE]


def test_small_kernels_run_in_the_interpreter_and_under_a_checker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["small_kernels", "--device", "cpu", "--kernel", "gate"])
    assert small_kernels.main() == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| gate | rows 3, width 40 | float16 | right |",
        "| gate | rows 2, width 24, activation gelu_tanh | float16 | right |",
        "| gate | rows 2, width 24, activation clamped_swiglu | float16 | right |",
    ]
    checker = tmp_path / "compute-sanitizer"
    checker.write_text(STAND_IN)
    checker.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    kernels = ["--kernel", "rms_norm", "--kernel", "sample"]
    monkeypatch.setattr(sys, "argv", ["small_kernels", "--memcheck", "--seconds", "5", *kernels])
    assert small_kernels.main() == small_kernels.CHECKER_FOUND_STATUS
    assert capsys.readouterr().out.splitlines()[2:] == [
        *("| rms_norm, own allocations 1 |", "ERROR SUMMARY: 1 error"),
        *("| sample, own allocations 1 |", "ERROR SUMMARY: 1 error"),
    ]
