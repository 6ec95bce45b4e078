"""`baton bench` as a process, against a server that answers as the gateway does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from launcher.bench.bench import bench
from launcher.bench.options import BenchConfig
from launcher.options import ROOT
from launcher.words import BAD_INPUT_STATUS
from tests.dashboard.stand_in import StandIn
from tests.waiting import DEADLINE_S
from workloads.report import Report


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "launcher", "bench", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*words: str) -> tuple[int, str, str]:
    with start(*words) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, output, errors


def test_a_load_is_shown_written_and_compared(stand_in: StandIn, tmp_path: Path) -> None:
    file = str(tmp_path / "report.json")
    options = ("--rate", "100", "--requests", "12", "--output-tokens", "9", "--warm-up", "1", "--json", file)
    status, output, errors = run(stand_in.url, *options)
    assert status == 0 and "12 (100%) met TTFT 2000 ms" in output and "warming up" in errors
    report = msgspec.json.decode(Path(file).read_bytes(), type=Report)
    assert (report.requests, report.answered, report.model, len(stand_in.asked)) == (12, 12, "demo", 13)
    assert report.load["--rate"] == "100.0" and report.server == stand_in.url
    begin, end = stand_in.marks
    assert begin["name"] == end["name"] == "bench 100/s" and begin["run"] == end["run"] and end["ended"]
    page = tmp_path / "compared.html"
    status, output, _ = run("--compare", file, file, "--html", str(page))
    assert status == 0 and "goodput, requests/s" in output and "1.00" in output
    assert page.read_text().count("<svg") == 3 and "goodput, requests/s" in page.read_text()


def test_a_search_shows_each_rate_and_the_goodput(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "trials.json"
    limits = ("--slo-ttft-ms", "0.001", "--output-tokens", "9", "--seconds", "0.001")
    status, output, _ = run(stand_in.url, "--sweep", "400,800", *limits, "--json", str(file))
    assert status == 0 and "goodput   0: at no rate were 90% of the requests good" in output
    assert [trial["rate"] for trial in json.loads(file.read_bytes())] == [400.0, 800.0]
    assert {trial["report"]["missed"]["ttft"] > 0 for trial in json.loads(file.read_bytes())} == {True}


def test_a_sweep_of_lengths_is_a_page_with_a_curve_for_each(stand_in: StandIn, tmp_path: Path) -> None:
    page, file = tmp_path / "report.html", tmp_path / "trials.json"
    words = (
        "--sweep",
        "400,800",
        "--sweep-prompts",
        "4,8",
        "--output-tokens",
        "3",
        "--seconds",
        "0.001",
        "--requests",
        "8",
    )
    status, output, _ = run(stand_in.url, *words, "--html", str(page), "--json", str(file))
    assert status == 0 and output.count("goodput ") == 2 and "8 prompt tokens" in page.read_text()
    lengths = [trial["report"]["load"]["--prompt-tokens"] for trial in json.loads(file.read_bytes())]
    assert lengths == ["4", "4", "8", "8"]


def test_interrupted_loads_show_what_was_measured(stand_in: StandIn) -> None:
    with start(stand_in.url, "--rate", "40", "--seconds", "600", "--warm-up", "0") as process:
        assert process.stderr is not None
        while "sending" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130 and "goodput" in output


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("http://127.0.0.1:1",), "cannot be reached"),
        (("http://h", "--peak", "9"), "--peak: 9.0: goes with --profile"),
        (("http://h", "--profile", "ramp", "--peak", "1"), "--peak: 1.0: must be above --rate 2"),
        (("http://h", "--prompt-tokens", "9"), "--output-tokens"),
        (("http://h", "--shared-tokens", "9"), "--shared-tokens: 9: needs --prompt-tokens"),
        (("http://h", "--sweep", "1,x"), "--sweep: '1,x': expected"),
        (("http://h", "--sweep", "1", "--concurrency", "3"), "--sweep: '1': cannot be used with --concurrency"),
        (("http://h", "--sweep-prompts", "4,8"), "--sweep-prompts: '4,8': goes with --sweep"),
        (
            ("http://h", "--sweep", "1", "--sweep-prompts", "4,x", "--output-tokens", "3"),
            "--sweep-prompts: 'x': expected",
        ),
        (("http://h", "--turns", "3"), "--turns: '3': needs --prompt-tokens"),
        (("http://h", "--pause", "3"), "--pause: 3.0: is between turns"),
        (("http://h", "--sharegpt", "none.json"), "--sharegpt: 'none.json': No such file"),
        (("http://h", "--sharegpt", "none.json", "--turns", "3"), "--turns: '3': cannot be used with --sharegpt"),
        (("http://h", "--ratte", "1"), "--ratte"),
        (("--compare", "one.json"), "expected two files"),
        (("--rate", "1", "--compare", "one.json"), "--compare: '--rate 1 --compare one.json': stands alone"),
        (("http://h", "--trace", "t.csv", "--prompt-tokens", "9"), "--prompt-tokens: '9': cannot be used with --trace"),
        (("http://h", "--trace-speed", "2"), "--trace-speed: 2.0: needs --trace"),
        (("http://h", "--rate", "inf"), "--rate: 'inf': "),
        (
            ("http://h", "--find-goodput", "--profile", "ramp", "--peak", "9"),
            "--peak: 9.0: cannot be used with --find-goodput",
        ),
        (
            ("http://h", "--concurrency", "2", "--profile", "ramp", "--peak", "9"),
            "--peak: 9.0: cannot be used with --concurrency",
        ),
        (("http://h", "--json", "none/report.json"), "--json: 'none/report.json': its directory does not exist"),
        (("http://h", "--html", "docs"), "--html: 'docs': is a directory"),
        (("http://h", "--calibrate", "none/c.json"), "--calibrate: 'none/c.json': its directory does not exist"),
        (("--compare", "pyproject.toml", "none.json"), "--compare: 'pyproject.toml': is no report"),
    ],
)
def test_bad_input_is_one_sentence(
    words: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert bench(words) == BAD_INPUT_STATUS
    errors = capsys.readouterr().err
    assert error in errors and errors.startswith("error: ") and errors.count("\n") == 1


def test_later_loads_of_a_seed_are_no_loads_of_another_seed() -> None:
    drawn = {BenchConfig(seed=seed).chance(load).random() for seed in range(8) for load in range(8)}
    assert len(drawn) == 64
