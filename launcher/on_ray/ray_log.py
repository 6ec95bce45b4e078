"""Writes Ray's output, with the lines of all actors, to the log of `./baton up`."""

import io
import re
import threading

from launcher.host.child import MAX_LINE_BYTES
from launcher.instance.log_file import Log

RAY_PREFIX = re.compile(r"^\((?:\S+ )?pid=\d+(?:, ip=\S+)?\) ")
"""Ray's prefix of an actor's line; the line itself begins with the service's name."""


class RayLog(io.TextIOBase):
    """Replaces stdout; Ray prints from several threads."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._lock = threading.Lock()
        self._mine = threading.local()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Buffers a line until its end arrives from the same thread, and then writes the whole line."""
        *lines, rest = (getattr(self._mine, "rest", "") + text).split("\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], ""
        self._mine.rest = rest
        with self._lock:
            self._log.write(
                "".join(RAY_PREFIX.sub("", line, count=1) + "\n" for line in lines).encode(errors="replace")
            )
        return len(text)
