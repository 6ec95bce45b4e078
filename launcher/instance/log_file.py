"""Bounds an instance's log: rotated files of a bounded size, and no errors on a full disk.

If the log cannot be written, its lines are lost and counted, and the service goes on. The number of lost lines is shown
on the terminal and in the log as soon as the log can be written again.
"""

import fcntl
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from contracts.kinds import LogFormat
from launcher.instance.service_lines import LAUNCHER_NAME, ServiceLines

WRITE_RETRY_S = 5.0


class Log(Protocol):
    """A sink of lines that never raises."""

    def write(self, lines: bytes) -> None:
        """Writes whole lines with their line ends."""


class OutputLog:
    """Writes lines to standard output, as a container's log is written."""

    def write(self, lines: bytes) -> None:
        with suppress(OSError):  # the reader is gone
            sys.stdout.buffer.write(lines)
            sys.stdout.flush()


class Descriptors(Protocol):
    """The file for the next lines of a log."""

    path: str

    def of(self, size: int) -> int:
        """Returns the descriptor for the next `size` bytes. Raises `OSError`."""


class LossyLog:
    """Writes lines to files that may fail. `say` gets a sentence when the loss of lines begins and ends."""

    def __init__(
        self,
        files: Descriptors,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        form: LogFormat = "text",
    ) -> None:
        self._files = files
        self._say = say
        self._clock = clock
        self._lines = ServiceLines(LAUNCHER_NAME, form)
        self._lost = 0  # lines since the last successful write
        self._retry_at = 0.0
        self._torn = False  # the last write ended within a line

    def write(self, lines: bytes) -> None:
        """Writes whole lines, or counts them as lost."""
        if lost := self._lost:
            note = self._lines.formed(f"{lost} lines were lost: the log could not be written")
            if self._clock() < self._retry_at or self._append(note):
                self._lost += lines.count(b"\n")
                return
            self._lost = 0
            self._say(f"the log {self._files.path} is written again; {lost} lines were lost")
        self._lost = self._append(lines)

    def _append(self, lines: bytes) -> int:
        try:
            descriptor = self._files.of(len(lines))
            if self._torn:
                os.write(descriptor, b"\n")
                self._torn = False
            while lines:
                count = os.write(descriptor, lines)
                self._torn = lines[count - 1 : count] != b"\n"
                lines = lines[count:]
        except OSError as error:
            self._retry_at = self._clock() + WRITE_RETRY_S
            if not self._lost:
                why = error.strerror or type(error).__name__
                self._say(f"the log {self._files.path} cannot be written ({why}): its lines are lost until it can")
        return lines.count(b"\n")


class RotatedFiles:
    """Appends to `path`, which becomes `path.1` when it has `max_bytes`; that becomes `path.2`: `count` files in all.

    The current file is locked, which marks it as in use (`held_file.is_held`).
    """

    def __init__(self, path: Path, max_bytes: int, count: int) -> None:
        self.path = str(path)
        self._max_bytes = max_bytes
        self._count = count
        self._descriptor = _locked(self.path)

    def of(self, size: int) -> int:
        """Returns the current file's descriptor, or a new file's if `size` bytes exceed the bound. Raises `OSError`."""
        held = os.fstat(self._descriptor).st_size
        if held and held + size > self._max_bytes:
            self._rotate()
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def _rotate(self) -> None:
        if self._count == 1:
            os.ftruncate(self._descriptor, 0)
            return
        fresh = _locked(f"{self.path}.new")  # before the renames: if no file can be made, all files stay
        for number in range(self._count - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}.{number - 1}" if number > 1 else self.path, f"{self.path}.{number}")
        os.replace(f"{self.path}.new", self.path)
        os.close(self._descriptor)
        self._descriptor = fresh


class LogFile(LossyLog):
    """The log of one instance on this host."""

    def __init__(
        self, path: Path, max_bytes: int, count: int, say: Callable[[str], None], form: LogFormat = "text"
    ) -> None:
        self.path = path
        self._rotated = RotatedFiles(path, max_bytes, count)
        super().__init__(self._rotated, say, form=form)

    def close(self) -> None:
        self._rotated.close()

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class InheritedFile:
    """Lines for an inherited descriptor, such as standard output, whose size another program bounds."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.path = name
        self._descriptor = descriptor

    def of(self, size: int) -> int:
        return self._descriptor


def _locked(path: str) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor
