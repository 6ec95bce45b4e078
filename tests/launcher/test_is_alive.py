"""A worker's life is seen in its status file: it is renewed every second from when it is ready on."""

import os
import time
from pathlib import Path

from launcher.is_alive import is_alive


def test_who_starts_may_be_silent_and_who_is_ready_may_not(tmp_path: Path) -> None:
    status = tmp_path / "status"
    assert is_alive(status, 10.0), "it has hardly begun"
    for stage, age, alive in (("loading", 60, True), ("ready", 5, True), ("ready", 60, False)):
        status.write_text(f'{{"stage": "{stage}", "percent": 1, "pid": 7}}')
        then = time.time() - age
        os.utime(status, (then, then))
        assert is_alive(status, 10.0) is alive, stage
