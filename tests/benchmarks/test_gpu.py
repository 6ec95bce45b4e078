"""Parts run one after the other, within their time, whatever becomes of the others; a second call goes on."""

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import PARTS, Part, main

TABLE = "print('| a | b |'); print('| --- | --- |'); print('| 1 | 2 |'); print('done')"


def python(name: str, code: str, seconds: float = 60.0, result: str = "") -> Part:
    return Part(name, ("-c", code), seconds, result)


@pytest.fixture(autouse=True)
def _tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TUNED", tmp_path / "kernels-tuned.json")


def run(out: Path, parts: list[Part], monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--out", str(out), *options])
    return main(parts)


def statuses(out: Path) -> dict[str, str]:
    return {name: part["status"] for name, part in json.loads((out / "results.json").read_text()).items()}


def test_a_part_that_fails_or_hangs_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    made = "import json, sys; json.dump({'versions': 'card A', 'limits': 7}, open('{work}/x.json', 'w'));" + TABLE
    parts = [
        python("fails", "import no_such_package"),
        python("hangs", child, seconds=0.5),
        python("works", made, result="x.json"),
    ]
    (tmp_path / "kernels-tuned.json").write_text("{}")
    out = tmp_path / "out"
    begin = time.monotonic()
    assert run(out, parts, monkeypatch) == 1
    assert time.monotonic() - begin < 60
    assert statuses(out) == {"fails": "failed", "hangs": "out of time", "works": "passed"}
    page = (out / "results.md").read_text()
    assert "ModuleNotFoundError: No module named 'no_such_package'" in page
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |\n\ncard A; limits 7\n" in page
    assert "==== passed after" in (out / "log.txt").read_text() and (out / "tuned.json").read_text() == "{}"


def test_a_second_call_runs_what_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    flag = tmp_path / "flag"
    parts = [python("once", count), python("later", f"open({str(flag)!r})")]
    out = tmp_path / "out"
    assert run(out, parts, monkeypatch) == 1
    flag.touch()
    assert run(out, parts, monkeypatch) == 0
    assert (tmp_path / "runs").read_text() == "x" and statuses(out) == {"once": "passed", "later": "passed"}
    assert run(out, parts, monkeypatch, "--only", "once") == 0  # who asks for a part by name wants it again
    assert (tmp_path / "runs").read_text() == "xx"


def test_without_time_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, [python("late", "pass")], monkeypatch, "--minutes", "0.1") == 1
    assert not (tmp_path / "results.json").exists()


def test_all_parts_together_fit_into_their_time() -> None:
    assert sum(part.seconds for part in PARTS) <= 60 * gpu.MINUTES


def test_tables_are_apart() -> None:
    head, line = "| a |", "| --- |"
    assert gpu._tables([head, line, "| 1 |", head, line]) == [head, line, "| 1 |", "", head, line]
