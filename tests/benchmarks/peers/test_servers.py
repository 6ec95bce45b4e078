"""Servers and other children are real processes, which end with whoever started them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.peers.goodput import Trial
from benchmarks.peers.servers import HOST, Server, serving
from benchmarks.peers.setup import PeerError
from benchmarks.processes.children import child, last_line
from benchmarks.serve_peers import ServeConfig, line, summary
from launcher.checking.preflight import check_port
from launcher.options import ROOT
from launcher.stages import StageDisplay
from tests.waiting import alive, wait_until


def server(tmp_path: Path, *command: str) -> Server:
    return Server("small", (sys.executable, *command), {"SETTING": "kept"}, "/", 0, tmp_path / "small.log")


def test_a_server_is_ready_when_it_answers_and_gone_afterwards(tmp_path: Path) -> None:
    port = check_port("--port", HOST, 0)
    small = server(tmp_path, "-m", "http.server", str(port), "--bind", HOST, "--directory", str(tmp_path))
    with serving(Server(small.name, small.command, {}, "/", port, small.log), StageDisplay()) as url:
        assert httpx.get(url).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_child_finds_what_was_brought_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind this checkout: on a machine where nothing can be installed, packages are in a directory of their own."""
    (tmp_path / "brought.py").touch()
    (tmp_path / "core.py").write_text("raise ImportError('not ours')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-c", "import brought, contracts.errors; print('both')"]
    with child(command, tmp_path / "log", piped=True) as process:
        assert process.stdout is not None and process.stdout.read() == "both\n", last_line(tmp_path / "log")


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    small = server(tmp_path, "-c", "import os; raise SystemExit('no room, ' + os.environ['SETTING'])")
    with pytest.raises(PeerError, match=r"^small: has ended: no room, kept"), serving(small, StageDisplay()):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_children_end_with_us_and_with_what_they_started(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
import signal
from pathlib import Path
from benchmarks.processes.children import child, end_on_termination
signal.signal(signal.SIGINT, signal.default_int_handler)  # who is started in a shell's background ignores it
end_on_termination()
with child(["sh", "-c", "sleep 60 & echo $!; wait"], Path({str(tmp_path / "log")!r}), piped=True) as process:
    print(process.pid, process.stdout.readline().strip(), flush=True)
    process.wait()
"""
    ours = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert ours.stdout is not None
    pids = [int(word) for word in ours.stdout.readline().split()]
    assert len(pids) == 2 and all(alive(pid) for pid in pids)
    ours.send_signal(number)
    ours.wait()
    ours.stdout.close()
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), f"process {pid} to end")  # type: ignore[misc]


def test_the_last_line_is_what_a_sentence_needs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\n two \xff\n\n  \n")
    assert last_line(log) == "two \ufffd"
    log.write_text("")
    assert last_line(log) == "it said nothing"


def test_goodput_stands_side_by_side() -> None:
    ours, theirs = Trial(4.5, 0.96, (100.0, 900.4), (20.0, 41.0), 1), Trial(2.0, 0.9, (1.0, 2.0), (3.0, 4.0), 0)
    assert line("baton", 64, ours) == "| baton | 64 | 4.500 | 96% | 100, 900 | 20, 41 | 1 |"
    assert list(summary(64, {"baton": ours, "vllm": theirs})) == [
        "64 tokens, baton: goodput 4.32 requests/s, at 4.500/s",
        "64 tokens, vllm: goodput 1.80 requests/s, at 2.000/s",
        "64 tokens, ours ÷ vllm's: 2.40 (target 1.5)",
    ]
    assert list(summary(9, {"baton": theirs, "baton-unsplit": ours}))[-1] == "9 tokens, split ÷ unsplit: 0.42"
    assert list(summary(9, {"vllm": None})) == ["9 tokens, vllm: at no rate were 90% of the requests good"]


def test_servers_and_lengths_are_chosen() -> None:
    config = ServeConfig(only="baton-unsplit,baton", prompt_tokens="64,1024")
    assert (config.servers(), config.lengths()) == (["baton-unsplit", "baton"], [64, 1024])
    assert ServeConfig().servers() == ["baton", "baton-unsplit", "vllm"] and ServeConfig().lengths() == [256]


def test_what_cannot_be_good_any_more_is_not_waited_for() -> None:
    assert ServeConfig(output_tokens=64, slo_ttft_ms=2000.0, slo_tpot_ms=100.0).linger() == pytest.approx(8.3)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    for module, options, error in (
        ("serve_peers", ["--only", "ollama"], "error: --only: 'ollama': is none of baton, baton-unsplit, vllm\n"),
        ("peers", ["--directory", os.devnull], f"error: --directory: '{os.devnull}': cannot be made: File exists\n"),
    ):
        result = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{module}", *options], cwd=ROOT, capture_output=True, text=True
        )
        assert (result.returncode, result.stderr) == (2, error)
