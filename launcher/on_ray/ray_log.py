"""Writes what Ray prints, the lines of all actors among them, to the log of `./baton up`, as a supervisor would."""

import io
import re
import threading

from launcher.host.child import LONGEST_LINE
from launcher.host.log_file import Log

PREFIX = re.compile(r"^\((?:\S+ )?pid=\d+(?:, ip=\S+)?\) ")
"""What Ray puts before an actor's line, which begins with its service's name already."""


class RayLog(io.TextIOBase):
    """Takes the place of stdout; Ray prints from several threads."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._lock = threading.Lock()
        self._mine = threading.local()

    def writable(self) -> bool:
        """Tells that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Keeps a line until its end comes from the same thread, and then writes it whole."""
        *lines, rest = (getattr(self._mine, "rest", "") + text).split("\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], ""
        self._mine.rest = rest
        with self._lock:
            self._log.write("".join(PREFIX.sub("", line, count=1) + "\n" for line in lines).encode(errors="replace"))
        return len(text)
