"""Gives the lines of an instance's log one form, whichever service wrote them: ours, Redis', or a library's.

In text each line begins with its service's name. In JSON each line is an object: our services' lines are objects
already, and others become the message of one. Redis' own lines get our time and level in both.
"""

import re
import time
from collections.abc import Callable
from datetime import datetime

import msgspec

from contracts.kinds import LogFormat
from infra.process.log_format import LogLine

# 4711:M 28 Nov 2026 05:24:57.123 * Ready to accept connections
_REDIS_LINE_REGEX = re.compile(r"\d+:[XCSM] (\d\d \w{3} \d{4} \d\d:\d\d:\d\d\.\d{3}) ([.\-*#]) (.*)")
_REDIS_LEVELS = {".": "DEBUG", "-": "DEBUG", "*": "INFO", "#": "WARNING"}
NAME_COLUMNS = 9
LAUNCHER_NAME = "launcher"
ERROR_PREFIX = "error: "  # of a service's last sentence
_json = msgspec.json.Decoder()


class ServiceLines:
    """Forms the lines of one service for the log."""

    def __init__(self, service: str, form: LogFormat = "text", clock: Callable[[], float] = time.time) -> None:
        self._service = service
        self._form: LogFormat = form
        self._clock = clock

    def formed(self, text: str) -> bytes:
        """Returns a line of the log, with its end, for a line that the service wrote."""
        line = text if self._form == "json" and _is_object(text) else self._line(text)
        return f"{line}\n".encode() if self._form == "json" else f"{self._service:<{NAME_COLUMNS}} | {line}\n".encode()

    def message_line(self, message: str, level: str = "INFO") -> bytes:
        """Returns a line of the log for a message of the launcher about this service."""
        line = LogLine(self._clock(), level, self._service, message).formed(self._form)
        return f"{line}\n".encode() if self._form == "json" else f"{self._service:<{NAME_COLUMNS}} | {line}\n".encode()

    def _line(self, text: str) -> str:
        if (found := _REDIS_LINE_REGEX.fullmatch(text)) is not None:
            at = datetime.strptime(found[1], "%d %b %Y %H:%M:%S.%f").timestamp()
            return LogLine(at, _REDIS_LEVELS[found[2]], self._service, found[3]).formed(self._form)
        if self._form == "text":
            return text
        level = "ERROR" if text.startswith(ERROR_PREFIX) else "INFO"
        return LogLine(self._clock(), level, self._service, text).json()


def is_of(line: bytes, service: str) -> bool:
    """Returns whether a line of the log is the service's, or of one of its processes: `decode-0` of `decode`."""
    name = rf"{re.escape(service)}(-\d+)?"
    pattern = rf'.*?"service":"{name}( [^"]*)?"' if line.startswith(b"{") else rf"{name} *\|"
    return re.match(pattern.encode(), line) is not None


def _is_object(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        return isinstance(_json.decode(text), dict)
    except msgspec.DecodeError:
        return False
