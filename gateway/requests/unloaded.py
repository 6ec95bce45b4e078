"""Has requests wait while an idle model is unloaded (`--idle-unload`), and tells the launcher how long it is idle.

The launcher unloads: it makes a file, ends the workers, starts them when a gateway is busy, and removes the file.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from contracts.slo import Objective
from gateway.errors import unavailable

POLL_PERIOD_S = 0.1
RETRY_AFTER_S = 5.0
LOADING = "loading again"
"""Stage while workers start: in the launcher's file, and after its removal until a worker is connected."""


class UnloadedModel:
    """The launcher's file, and the requests that wait for its removal."""

    def __init__(self, path: str, timeout: float, ready: Callable[[], bool]) -> None:
        """`path`: the launcher's file; empty: the model stays loaded. `timeout`: longest wait of a request, in s.

        `ready` returns whether a worker takes requests.
        """
        self._path = Path(path) if path else None
        self._timeout = timeout
        self._ready = ready
        self._away = False
        self._closed = False
        self.waiting = 0  # number of waiting requests

    def stage(self) -> str:
        """Returns `unloaded`, `loading again`, or an empty text for a loaded model."""
        if self._path is None:
            return ""
        try:
            said = self._path.read_text()
        except OSError:
            said = ""
        self._away = bool(said) or (self._away and not self._ready())
        return said or (LOADING if self._away else "")

    async def over(self, wanted: Objective) -> None:
        """Returns when the model is loaded. Raises `APIError` (503) when a first token would be late, or timed out."""
        if not self.stage():
            return
        limit = self._timeout if wanted.ttft_ms is None else min(self._timeout, wanted.ttft_ms / 1000)
        end = time.monotonic() + limit
        self.waiting += 1
        try:
            while stage := self.stage():
                if self._closed:
                    raise unavailable("the server is shutting down", "shutting_down")
                if time.monotonic() >= end:
                    message = (
                        f"the model was unloaded while it was idle (--idle-unload); it is {stage}, after {limit:g} s"
                    )
                    raise unavailable(message, "no_workers", RETRY_AFTER_S)
                await asyncio.sleep(POLL_PERIOD_S)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Refuses the requests that wait."""
        self._closed = True


class IdleTime:
    """The time since a request was in progress, as seen by looks once a second. Pure."""

    def __init__(self) -> None:
        self._busy_at: float | None = None
        self._ended = 0

    def look(self, in_progress: int, ended: int, now: float) -> float | None:
        """Returns the idle time, s, or None before the first request. `ended`: requests that have ended so far."""
        if in_progress or ended != self._ended:
            self._busy_at, self._ended = now, ended
        return None if self._busy_at is None else now - self._busy_at
