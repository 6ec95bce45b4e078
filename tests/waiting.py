"""Waiting for what another process does: polls with a deadline, never sleeps for a fixed time."""

import time
from collections.abc import Callable
from pathlib import Path

DEADLINE = 60.0  # s; the machine may be slow


def wait_until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    """Returns when `condition` is true; fails the test with `what` when it does not become so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def children(pid: int) -> list[int]:
    try:
        direct = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return direct + [grandchild for child in direct for grandchild in children(child)]
