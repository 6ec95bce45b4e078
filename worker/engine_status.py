"""Shows the I/O thread how the engine thread stands at any moment: plain attributes, each replaced as a whole."""

import time

from core.records import Load

PATIENCE = 10.0  # a step is overdue after this multiple of the usual time …
LEAST = 1.0  # … but not before this many seconds


class EngineStatus:
    """Tells load, whether the worker drains, and how the running step stands. Written by the engine thread only."""

    def __init__(self) -> None:
        self.load = Load()
        self.draining = False
        self._started: float | None = None  # s, of time.monotonic; None while no step runs
        self._usual = 0.1  # s that a step takes, as a moving average

    def step_started(self) -> None:
        """Notes that a step begins."""
        self._started = time.monotonic()

    def step_ended(self) -> None:
        """Notes that the running step is done, and learns from what it took."""
        if self._started is not None:
            self._usual += 0.1 * (time.monotonic() - self._started - self._usual)
            self._started = None

    def step_due_ms(self) -> float:
        """Returns the ms until the running step is overdue, negative once it is; 0 while no step runs."""
        started = self._started
        if started is None:
            return 0.0
        return (started + max(LEAST, PATIENCE * self._usual) - time.monotonic()) * 1000
