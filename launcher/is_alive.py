"""Checks that a service lives: `python -m launcher.is_alive STATUS_FILE SECONDS` exits with 0 while it does.

One that is ready renews its status file's time every second, as long as its event loop runs. One that starts is not
judged: its start has a bound of its own.
"""

import sys
import time
from pathlib import Path

from infra.process.status import read_status

READY = "ready"


def is_alive(path: Path, silent_seconds: float) -> bool:
    """Tells whether a service starts, or has given a sign of life within so many seconds."""
    status = read_status(path)
    if status is None or status.stage != READY:
        return True
    return time.time() - path.stat().st_mtime < silent_seconds


if __name__ == "__main__":
    raise SystemExit(not is_alive(Path(sys.argv[1]), float(sys.argv[2])))
