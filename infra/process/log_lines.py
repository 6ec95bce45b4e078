"""Bounds what a service logs: each log statement writes a few lines in a while, and says how many it has left out.

Whatever makes a service log at the pace of its peers or clients fills a disk no faster than this. What was left out is
told by the statement's next line, or when the log ends.
"""

import copy
import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

MAX_LINES = 20  # of one kind, in a window
WINDOW_S = 10.0
MAX_KINDS = 1024  # kinds of lines that are told apart; all further lines are one kind

Kind = tuple[str, str, int, str]


class LineLimit:
    """Says which lines of a kind are written: a number of them in each window. Pure: time is an argument."""

    def __init__(self, lines: int, window: float) -> None:
        self._lines = lines
        self._window = window
        self._begun = -window
        self._written = 0
        self.left_out = 0  # lines since the last that was written

    def take(self, now: float) -> int | None:
        """Returns None for a line that is left out, else how many were left out before it."""
        if now - self._begun >= self._window:
            self._begun, self._written = now, 0
        if self._written >= self._lines:
            self.left_out += 1
            return None
        self._written += 1
        left_out, self.left_out = self.left_out, 0
        return left_out


class BoundedLog(logging.StreamHandler[TextIO]):
    """Writes the lines of each kind within a limit.

    A kind is a log statement of the program, whatever its arguments are; `extra={"kind": ...}` makes several kinds of
    one statement. All lines of the level DEBUG are written: whoever asks for that level wants each.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._limits: dict[Kind, LineLimit] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line, or leaves it out; called with the handler's lock."""
        if record.levelno <= logging.DEBUG:
            super().emit(record)
            return
        kind = (record.name, record.pathname, record.lineno, getattr(record, "kind", ""))
        if kind not in self._limits and len(self._limits) >= MAX_KINDS:
            kind = ("", "", 0, "")
        left_out = self._limits.setdefault(kind, LineLimit(MAX_LINES, WINDOW_S)).take(self._clock())
        if left_out is None:
            return
        if left_out:
            record = copy.copy(record)
            record.msg = f"{record.msg} ({left_out} such lines were left out before)"
        super().emit(record)

    def close(self) -> None:
        """Tells what was left out behind the last lines."""
        left_out = sum(limit.left_out for limit in self._limits.values())
        self._limits.clear()
        if left_out:
            form = {"name": "baton.log", "levelno": logging.INFO, "levelname": "INFO"}
            super().emit(logging.makeLogRecord({**form, "msg": f"{left_out} more lines were left out"}))
        super().close()


def log_to_stderr(level: str, form: str) -> None:
    """Has all loggers of this process write to stderr, within bounds. `form`: as `logging.Formatter` takes it."""
    logging.basicConfig(level=level.upper(), format=form, handlers=[BoundedLog(sys.stderr)])
