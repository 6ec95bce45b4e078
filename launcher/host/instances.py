"""Records running instances, for other commands of this user: where each is, and how its services are."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from launcher.host.held_file import HeldFile, is_held
from launcher.host.state_directory import state_directory

Phase = Literal["starting", "running", "stopping"]


class ServiceState(Struct, frozen=True):
    """Says how one service of an instance is."""

    name: str
    stage: str  # `ready`, or what it does instead
    pid: int = 0  # 0: it has died, and is started again soon


class Instance(Struct, frozen=True):
    """Describes an instance, as `baton chat` and `baton status` find it."""

    url: str
    pid: int
    model: str
    started: float
    log: str
    key_file: str = ""  # with a key that this user may ask with, where keys are needed
    cert: str = ""  # to trust, where it is asked by https
    dashboard: str = ""
    phase: Phase = "running"
    services: tuple[ServiceState, ...] = ()  # none: they run on a Ray cluster


class Record:
    """Makes an instance known until it is closed, or the process ends. A full disk only makes it unknown."""

    def __init__(self, instance: Instance, say: Callable[[str], None]) -> None:
        """Writes the record; `say` gets a sentence where that fails."""
        self.instance = instance
        self._say = say
        self._file: HeldFile | None = None
        self._write()

    def change(self, **fields: Any) -> None:
        """Writes what has changed of the instance's fields."""
        now, self.instance = self.instance, replace(self.instance, **fields)
        if self.instance != now:
            self._write()

    def _write(self) -> None:
        content = msgspec.json.encode(self.instance).decode()
        path = _folder() / f"{self.instance.pid}.json"
        try:
            if self._file is None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._file = HeldFile(path, content)
            else:
                self._file.replace(content)
        except OSError as error:
            why = error.strerror or type(error).__name__
            self._say(f"the record {path} cannot be written ({why}): ./baton status and ./baton chat go without it")

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()


def recorded() -> list[Instance]:
    """Returns the instances of this user in every phase, the newest first, and removes the records of dead ones."""
    found = []
    for path in _folder().glob("*.json"):
        if not is_held(path):
            with suppress(OSError):
                path.unlink()
            continue
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Instance))
        except (FileNotFoundError, msgspec.DecodeError):
            continue  # it ended in this moment, or an older version wrote it
    return sorted(found, key=lambda instance: instance.started, reverse=True)


def running() -> list[Instance]:
    """Returns the instances of this user that were ready and are not ending, the newest first."""
    return [instance for instance in recorded() if instance.phase == "running"]


def _folder() -> Path:
    return state_directory() / "instances"
