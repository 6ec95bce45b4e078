"""Tells of every request that is answered with an error: a counter each, and a line in the log, within a limit."""

import logging
import time
from collections import Counter
from collections.abc import Callable

from gateway.errors import APIError
from gateway.reports.metrics import Metrics

LINES = 20  # of one code
WINDOW = 10.0  # s in which there are no more
log = logging.getLogger("baton.gateway")


class LineLimit:
    """Says which lines of a kind are written: a number of them in each window. Pure: time is an argument."""

    def __init__(self, lines: int, window: float) -> None:
        self._lines = lines
        self._window = window
        self._begun = -window
        self._written = 0
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """Returns None for a line that is left out, else how many were left out before it."""
        if now - self._begun >= self._window:
            self._begun, self._written = now, 0
        if self._written >= self._lines:
            self._left_out += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class Refusals:
    """Counts refused and failed requests, and logs them by their ids. Nothing that a client wrote is in the log."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._limits: dict[str, LineLimit] = {}  # by code, of which there are a few dozen
        self.counts: Counter[str] = Counter()  # of the requests that were answered with 429 or 503, by code

    def report(self, error: APIError, request: str) -> None:
        """Tells of a request, by its id, that is answered with this error."""
        code = error.code or "error"
        self._metrics.refused(error.status, code)
        self.counts[code] += error.refuses
        left_out = self._limits.setdefault(code, LineLimit(LINES, WINDOW)).take(self._clock())
        if left_out is None:
            return
        # A message to a client that was wrong may repeat its words; one about us does not.
        why = f": {error.message}" if error.status >= 500 or error.status == 429 else ""
        more = f" ({left_out} such lines were left out before)" if left_out else ""
        level = logging.WARNING if error.status >= 500 else logging.INFO
        log.log(level, "request %s is answered %d %s%s%s", request, error.status, code, why, more)
