"""Servers and other children are real processes, which end with whoever started them."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.peers.servers import HOST, Server, serving
from benchmarks.peers.setup import PeerError
from benchmarks.processes.children import child, last_line
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
