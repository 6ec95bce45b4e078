"""Keeps what others find of an instance: its log, which outlives it, and the record that it is running."""

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from launcher.host.held_file import HeldFile, is_held

KEPT_LOGS = 20


class Instance(Struct, frozen=True):
    """Describes a running instance, as `baton chat` finds it."""

    url: str
    pid: int
    model: str
    started: float
    log: str
    key_file: str = ""  # with a key that this user may ask with, where keys are needed
    cert: str = ""  # to trust, where it is asked by https


def state_directory() -> Path:
    """Returns `$XDG_STATE_HOME/baton` or `~/.local/state/baton`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "baton"


def new_log() -> Path:
    """Makes the log file of an instance that starts now, and removes the oldest logs."""
    logs = state_directory() / "logs"
    logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in sorted(logs.glob("*.log"))[: 1 - KEPT_LOGS]:
        old.unlink(missing_ok=True)
    path = logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    path.touch(mode=0o600)
    return path


def record(instance: Instance) -> HeldFile:
    """Makes the instance known until the record is closed or the process ends."""
    folder = state_directory() / "instances"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return HeldFile(folder / f"{instance.pid}.json", msgspec.json.encode(instance).decode())


def running() -> list[Instance]:
    """Returns the running instances of this user, the newest first, and removes the records of dead ones."""
    found = []
    for path in (state_directory() / "instances").glob("*.json"):
        if not is_held(path):
            path.unlink(missing_ok=True)
            continue
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Instance))
        except (FileNotFoundError, msgspec.DecodeError):
            continue  # it ended in this moment, or an older version wrote it
    return sorted(found, key=lambda instance: instance.started, reverse=True)
