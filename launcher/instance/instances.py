"""Records running instances, their addresses and the state of their services, for other commands of this user."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from launcher.instance.held_file import HeldFile, is_held
from launcher.instance.state_directory import state_directory

Phase = Literal["starting", "running", "stopping"]


class ServiceState(Struct, frozen=True):
    """State of one process of an instance."""

    name: str
    stage: str  # `ready`, or the stage of its start
    pid: int = 0  # 0: dead, and restarted soon
    address: str = ""  # of a ready worker, as in its record in Redis
    restarts: int = 0


class Instance(Struct, frozen=True):
    """An instance, as `baton chat` and `baton status` find it."""

    url: str
    pid: int
    model: str
    started: float  # seconds since 1970
    log: str
    key_file: str = ""  # file with an operator key, where clients need keys
    cert: str = ""  # certificate to trust, for https
    dashboard: str = ""
    phase: Phase = "running"
    services: tuple[ServiceState, ...] = ()  # empty: on a Ray cluster


class Record:
    """The record of this instance, until `close` or the end of the process. On a full disk there is no record."""

    def __init__(self, instance: Instance, say: Callable[[str], None]) -> None:
        self.instance = instance
        self._say = say
        self._file: HeldFile | None = None
        self._write()

    def change(self, **fields: Any) -> None:
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
    """Returns this user's instances in every phase, the newest first, and removes records of dead instances."""
    found = []
    for path in _folder().glob("*.json"):
        if not is_held(path):
            with suppress(OSError):
                path.unlink()
            continue
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Instance))
        except (FileNotFoundError, msgspec.DecodeError):
            continue  # the instance has just ended, or an older version wrote the record
    return sorted(found, key=lambda instance: instance.started, reverse=True)


def running() -> list[Instance]:
    """Returns this user's instances in phase `running`, the newest first."""
    return [instance for instance in recorded() if instance.phase == "running"]


def _folder() -> Path:
    return state_directory() / "instances"
