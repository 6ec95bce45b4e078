"""The containers' probes of a status file, as commands of the image: a service is ready, or lives."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from infra.process.status import StatusFile
from launcher.containers.container import is_alive, is_ready


def succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def test_the_probes_read_the_file_that_a_service_writes(tmp_path: Path) -> None:
    path = tmp_path / "status"
    ready, alive = is_ready(str(path)), is_alive(str(path), 30)
    assert (succeeds(ready), succeeds(alive)) == (False, True), "it has hardly begun"
    status = StatusFile(str(path))
    status.report("loading weights", 40.0)
    os.utime(path, (0, 0))
    assert (succeeds(ready), succeeds(alive)) == (False, True), "a start has a bound of its own"
    status.ready("tcp://127.0.0.1:1")
    assert (succeeds(ready), succeeds(alive)) == (True, True)
    os.utime(path, (time.time() - 25, time.time() - 25))
    assert succeeds(alive)
    os.utime(path, (time.time() - 31, time.time() - 31))
    assert (succeeds(ready), succeeds(alive)) == (True, False)


def test_a_url_is_asked_by_python() -> None:
    assert is_ready("http://127.0.0.1:8000/ready")[:3] == ("python", "-m", "launcher.is_ready")
