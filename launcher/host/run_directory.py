"""Makes the directory of a running instance, for socket, status files and secret, and removes those of ended ones."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import ConfigError
from launcher.host.held_file import HeldFile, is_held

PREFIX = "baton-run-"
OWNER = "owner"
LONGEST_BASE = 80  # bytes; a UNIX socket's path has at most 107
YOUNG_SECONDS = 60.0  # a directory without an owner may be one that is just being made


@contextmanager
def run_directory() -> Iterator[Path]:
    """Makes a directory that only this user can enter, until exit. First removes what killed instances left behind.

    Raises `ConfigError` where it cannot be made.
    """
    try:
        base = Path(tempfile.gettempdir())
        if len(os.fsencode(base)) > LONGEST_BASE:
            base = Path("/tmp")
        sweep(base)
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        owner = HeldFile(path / OWNER, f"{os.getpid()}\n")
    except OSError as error:
        why = f"no run directory can be made: {error.strerror}; TMPDIR names another place"
        raise ConfigError("TMPDIR", os.environ.get("TMPDIR", ""), why) from None
    try:
        yield path
    finally:
        owner.close()
        shutil.rmtree(path, ignore_errors=True)


def sweep(base: Path) -> None:
    """Removes this user's run directories whose instance is gone."""
    for path in base.glob(f"{PREFIX}*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # another start swept it first
        if status.st_uid != os.getuid() or is_held(path / OWNER):
            continue
        if (path / OWNER).exists() or time.time() - status.st_mtime > YOUNG_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
