"""Liveness probe: `python -m launcher.is_alive STATUS_FILE SECONDS` exits with 0 while the service lives.

A ready service touches its status file every second while its event loop runs. A starting service counts as alive: the
start has a bound of its own.
"""

import sys
import time
from pathlib import Path

from infra.process.status import read_status

READY_STAGE = "ready"


def is_alive(path: Path, silent_seconds: float) -> bool:
    """Returns whether a service is starting, or has touched its status file within `silent_seconds`."""
    status = read_status(path)
    if status is None or status.stage != READY_STAGE:
        return True
    return time.time() - path.stat().st_mtime < silent_seconds


if __name__ == "__main__":
    raise SystemExit(not is_alive(Path(sys.argv[1]), float(sys.argv[2])))
