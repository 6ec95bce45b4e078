"""Limits a service's log: each log statement writes a few lines in a time window, and reports how many it omitted.

So peers or clients cannot fill a disk through the log. Omitted lines are reported with the statement's next line, or
when the log is closed.
"""

import copy
import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from contracts.kinds import LogFormat
from infra.process.log_format import ServiceFormatter
from infra.process.supervised_life import own_life

MAX_LINES = 20  # of one kind, in a window
WINDOW_S = 10.0
ACCESS_LOGGER = "baton.access"
MAX_KINDS = 1024  # lines beyond these share one kind

Kind = tuple[str, str, int, str]


class LineLimit:
    """Decides which lines of one kind are written: a number in each window. Pure: time is an argument."""

    def __init__(self, lines: int, window: float) -> None:
        self._lines = lines
        self._window = window
        self._begun = -window
        self._written = 0
        self.left_out = 0  # lines omitted since the last written line

    def take(self, now: float) -> int | None:
        """Returns None if the line is to be omitted, else the number of lines omitted before it."""
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

    A kind is a log statement of the program, whatever its arguments; `extra={"kind": ...}` divides a statement into
    kinds. DEBUG lines are not limited, nor are lines of the access log: each stands for a request that was served.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._limits: dict[Kind, LineLimit] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= logging.DEBUG or record.name == ACCESS_LOGGER:
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
        left_out = sum(limit.left_out for limit in self._limits.values())
        self._limits.clear()
        if left_out:
            form = {"name": "baton.log", "levelno": logging.INFO, "levelname": "INFO"}
            super().emit(logging.makeLogRecord({**form, "msg": f"{left_out} more lines were left out"}))
        super().close()


def log_to_stderr(level: str, form: LogFormat, service: str, part: str = "") -> None:
    """Sends all loggers of this process to stderr, limited.

    A launcher's name for the service replaces `service`. `part`: part of the service that this process is.
    """
    handler = BoundedLog(sys.stderr)
    handler.setFormatter(ServiceFormatter(f"{own_life().name or service} {part}".rstrip(), form))
    logging.basicConfig(level=level.upper(), handlers=[handler])
