"""What the engine thread shows the I/O thread at any moment: plain attributes, each replaced as a whole."""

import time

from core.records import Load

PATIENCE = 10.0  # a step is overdue after this multiple of the usual time …
LEAST = 1.0  # … but not before this many seconds


class EngineStatus:
    """Tells load, whether the worker drains, and how the running step stands. Written by the engine thread only."""

    def __init__(self) -> None:
        self.load = Load()
        self.draining = False
        self._started: float | None = None
        self._usual = 0.1

    def step_started(self) -> None:
        """A step begins."""
        self._started = time.monotonic()

    def step_ended(self) -> None:
        """The step is done."""
        if self._started is not None:
            self._usual += 0.1 * (time.monotonic() - self._started - self._usual)
            self._started = None

    def step_due_ms(self) -> float:
        """Milliseconds until the running step is overdue, negative when it is; 0 when no step runs."""
        started = self._started
        if started is None:
            return 0.0
        return (started + max(LEAST, PATIENCE * self._usual) - time.monotonic()) * 1000
