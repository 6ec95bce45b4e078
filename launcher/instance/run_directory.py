"""Makes the run directory of an instance (socket, status files, secret), and removes directories of ended instances."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import ConfigError
from launcher.instance.held_file import HeldFile, is_held

DIRECTORY_PREFIX = "baton-run-"
OWNER_FILE = "owner"
MAX_BASE_BYTES = 80  # a UNIX socket's path has at most 107 bytes
MIN_AGE_S = 60.0  # a younger directory may not have its owner file yet


@contextmanager
def run_directory() -> Iterator[Path]:
    """Makes a private directory until exit, after removing directories of killed instances.

    Raises `ConfigError` if it cannot be made.
    """
    try:
        base = Path(tempfile.gettempdir())
        if len(os.fsencode(base)) > MAX_BASE_BYTES:
            base = Path("/tmp")
        sweep(base)
        path = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=base))
        owner = HeldFile(path / OWNER_FILE, f"{os.getpid()}\n")
    except OSError as error:
        why = f"no run directory can be made: {error.strerror}; TMPDIR names another place"
        raise ConfigError("TMPDIR", os.environ.get("TMPDIR", ""), why) from None
    try:
        yield path
    finally:
        owner.close()
        shutil.rmtree(path, ignore_errors=True)


def sweep(base: Path) -> None:
    """Removes this user's run directories whose instance has ended."""
    for path in base.glob(f"{DIRECTORY_PREFIX}*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # another start removed it first
        if status.st_uid != os.getuid() or is_held(path / OWNER_FILE):
            continue
        if (path / OWNER_FILE).exists() or time.time() - status.st_mtime > MIN_AGE_S:
            shutil.rmtree(path, ignore_errors=True)
