"""A service's start for other processes: one line of JSON in a file, replaced as a whole."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, structs

BEAT_SECONDS = 1.0  # between two updates of the file's time

Progress = Callable[[str, float], None]  # takes a stage and its percentage, 0 to 100


class Status(Struct, frozen=True, omit_defaults=True):
    """A stage of the start; the last is `ready` or `failed`."""

    stage: str
    percent: float = 0.0
    address: str = ""
    error: str = ""
    pid: int = 0
    idle_s: float | None = None  # since a gateway's last request in progress; None: it has had none, or does not tell


class StatusFile:
    """Writes a service's status; with an empty path, nothing."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._written = True  # `now` is in the file
        self.now = Status("starting")

    def report(self, stage: str, percent: float = 0.0, *, address: str = "", error: str = "") -> None:
        """Replaces the status; a reader sees the old line or the new one, never a part.

        If the disk is full, the old line stays, and `beat` writes the new one later.
        """
        self.now = Status(stage, round(percent, 1), address, error, os.getpid())
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            part.write_bytes(msgspec.json.encode(self.now) + b"\n")
            part.replace(self._path)
            self._written = True
        except OSError:
            self._written = False

    def ready(self, address: str) -> None:
        self.report("ready", 100.0, address=address)

    def failed(self, error: str) -> None:
        self.report("failed", error=error)

    async def beat(self, idle: Callable[[], float | None] | None = None) -> None:
        """Updates the file's time for ever, so that a launcher sees that this event loop runs.

        With `idle`, which returns `Status.idle_s`, it writes the file again. A missing file is no error: it may have
        gone with the launcher's directory.
        """
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if idle is not None:
                self.now = structs.replace(self.now, idle_s=idle())
            if idle is not None or not self._written:
                self._write()
            elif self._path is not None:
                with suppress(FileNotFoundError):
                    os.utime(self._path)


def read_status(path: Path) -> Status | None:
    """Reads the status in `path`; None if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
