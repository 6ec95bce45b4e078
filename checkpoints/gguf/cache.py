"""A bounded cache of the directories that describe GGUF files: unused directories are removed, oldest first.

A process that uses a directory holds a shared lock on it (flock(2)) for its whole life. Removal needs the exclusive
lock, and renames the directory first, so that no process sees a part of it.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_CACHE_BYTES = 1 << 30
"""A tokenizer of 260,000 words takes about 30 MB."""
MAX_UNUSED_S = 90 * 86400.0
MIN_AGE_S = 3600.0
"""Younger directories stay, since the process that made them may not hold them yet."""
REMOVED_PREFIX = ".gone-"
"""Name prefix of directories that are being removed."""
_held: dict[tuple[int, int], int] = {}  # open file descriptors with locks, by device and inode


def root() -> Path:
    """Returns `baton/gguf` in `$XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "gguf"


def hold(directory: Path) -> bool:
    """Locks a directory for this process's life and touches it; False if it is gone or being removed.

    Without locks of the file system, or without permission to write, it is used all the same.
    """
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    found = os.fstat(opened)
    key = (found.st_dev, found.st_ino)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return False
    except OSError:
        pass  # a file system without locks
    if not _is_at(directory, key):
        os.close(opened)
        return False
    with suppress(OSError):  # another user's directory
        os.utime(opened)
    if key in _held:
        os.close(opened)
    else:
        _held[key] = opened
    return True


def trim(cache_directory: Path, now: float | None = None) -> list[Path]:
    """Removes unused directories: old directories, and the least recently used beyond `MAX_CACHE_BYTES`. Returns them.

    `now` is in seconds since 1970.
    """
    now = time.time() if now is None else now
    _sweep(cache_directory, now)
    newest_first = sorted(
        (each for each in _used(cache_directory) if not each[1].name.startswith(REMOVED_PREFIX)), reverse=True
    )
    removed, total = [], 0
    for used, directory in newest_first:
        size = _size(directory)
        total += size
        old = now - used
        if old > MIN_AGE_S and (old > MAX_UNUSED_S or total > MAX_CACHE_BYTES) and _remove(directory):
            removed.append(directory)
            total -= size
    return removed


def _used(cache_directory: Path) -> Iterator[tuple[float, Path]]:
    for directory in cache_directory.iterdir():
        try:
            yield directory.stat().st_mtime, directory
        except OSError:
            continue  # another process has removed it


def _size(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _remove(directory: Path) -> bool:
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden = Path(tempfile.mkdtemp(prefix=REMOVED_PREFIX, dir=directory.parent))
        directory.rename(hidden)
    except OSError:  # it is in use, or cannot be renamed
        return False
    finally:
        os.close(opened)
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def _sweep(cache_directory: Path, now: float) -> None:
    """Finishes removals that an ended process has left behind."""
    for used, directory in list(_used(cache_directory)):
        if directory.name.startswith(REMOVED_PREFIX) and now - used > MIN_AGE_S:
            shutil.rmtree(directory, ignore_errors=True)


def _is_at(directory: Path, key: tuple[int, int]) -> bool:
    try:
        found = directory.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == key
