"""`python -m launcher.is_ready PLACE`: a container's health check; exit status 0 when the service is ready.

PLACE is a status file, whose writer must still run, or a URL that must answer 200.
"""

import sys
import urllib.error
import urllib.request
from pathlib import Path

from core.status import read_status
from launcher.service import READY

PATIENCE = 3.0  # s


def is_ready(place: str) -> bool:
    """Whether the service behind a status file or a URL is ready."""
    if place.startswith("http://"):
        try:
            with urllib.request.urlopen(place, timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
    status = read_status(Path(place))
    return status is not None and status.stage == READY and Path(f"/proc/{status.pid}").exists()


if __name__ == "__main__":
    raise SystemExit(not is_ready(sys.argv[1]))
