"""Readiness probe: `python -m launcher.is_ready PLACE` exits with 0 when the service is ready.

PLACE is a status file, whose writer must still run, or a URL that must answer 200.
"""

import sys
from pathlib import Path

from infra.process.status import read_status
from launcher.host.process import READY_STAGE, answers

ANSWER_TIMEOUT_S = 3.0


def is_ready(place: str) -> bool:
    """Returns whether the service behind a status file or a URL is ready."""
    if place.startswith(("http://", "https://")):
        return answers(place, ANSWER_TIMEOUT_S)
    status = read_status(Path(place))
    return status is not None and status.stage == READY_STAGE and Path(f"/proc/{status.pid}").exists()


if __name__ == "__main__":
    raise SystemExit(not is_ready(sys.argv[1]))
