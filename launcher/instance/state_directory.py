"""Finds this user's state directory, and makes an instance's log in it."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from contracts.errors import ConfigError
from contracts.kinds import LogFormat
from launcher.instance.held_file import is_held
from launcher.instance.log_file import LogFile

MAX_OLD_LOGS = 20


def state_directory() -> Path:
    """Returns `$XDG_STATE_HOME/baton` or `~/.local/state/baton`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "baton"


def new_log(max_bytes: int, files: int, say: Callable[[str], None], form: LogFormat = "text") -> LogFile:
    """Makes the log of a starting instance, and removes the oldest logs of ended instances.

    Raises `ConfigError` if it cannot be made.
    """
    logs = state_directory() / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in sorted(logs.glob("*.log"))[: 1 - MAX_OLD_LOGS]:
            if not is_held(old):
                for each in (old, *logs.glob(f"{old.name}.*")):
                    each.unlink(missing_ok=True)
        return LogFile(logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log", max_bytes, files, say, form)
    except OSError as error:
        why = f"no log can be made in {logs}: {error.strerror}; XDG_STATE_HOME names another place"
        raise ConfigError("XDG_STATE_HOME", os.environ.get("XDG_STATE_HOME", ""), why) from None
