"""Waiting for what another process does: polls with a deadline, never sleeps for a fixed time."""

import os
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 60.0
"""In which what takes seconds on a quiet machine is done on a busy one."""
LONG_DEADLINE_S = 300.0
"""The same for half a minute: a program's run, a whole system's start, a crowd's answers."""


def patient(seconds: float) -> float:
    """Returns how long a wait of this time may take where processes share the cores with as many as there are now."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(condition: Callable[[], object], what: str, seconds: float = DEADLINE_S) -> None:
    """Returns when `condition` is true; fails the test with `what` when it does not become so in `patient` seconds."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < patient(seconds), f"waited {waited:.0f} s for {what}"
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
