"""Keeps the directories that GGUF files were unpacked into within bounds: those that nobody uses go, the oldest first.

A process that uses a directory holds a shared lock on it (flock(2)) for as long as it lives, so nothing is removed that
somebody may still read. Who removes takes the lock alone, and renames the directory first: nobody sees a part of it.
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
"""What may stay in all; a tokenizer of 260,000 words takes about 30 MB."""
MAX_UNUSED_S = 90 * 86400.0
"""A directory that nobody has used for longer goes, whatever room there is."""
MIN_AGE_S = 3600.0
"""Seconds in which a directory is left alone: its maker may not hold it yet."""
REMOVED_PREFIX = ".gone-"
"""How directories that are being removed are called."""
_held: dict[tuple[int, int], int] = {}  # open for as long as this process lives, by device and inode: each holds a lock


def root() -> Path:
    """Returns where directories are: `baton/gguf` in `$XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "gguf"


def hold(directory: Path) -> bool:
    """Keeps a directory while this process lives, and notes that it was used; False: it is going, or gone.

    Where the file system has no locks, or the user may not write, it is only used.
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
    with suppress(OSError):  # another user's
        os.utime(opened)
    if key in _held:
        os.close(opened)
    else:
        _held[key] = opened
    return True


def trim(place: Path, now: float | None = None) -> list[Path]:
    """Removes and returns unused directories: old ones, and the least recently used beyond `MAX_CACHE_BYTES`.

    `now` is in seconds since 1970.
    """
    now = time.time() if now is None else now
    _sweep(place, now)
    there = sorted((each for each in _used(place) if not each[1].name.startswith(REMOVED_PREFIX)), reverse=True)
    removed, total = [], 0
    for used, directory in there:
        size = _size(directory)
        total += size
        old = now - used
        if old > MIN_AGE_S and (old > MAX_UNUSED_S or total > MAX_CACHE_BYTES) and _remove(directory):
            removed.append(directory)
            total -= size
    return removed


def _used(place: Path) -> Iterator[tuple[float, Path]]:
    for directory in place.iterdir():
        try:
            yield directory.stat().st_mtime, directory
        except OSError:
            continue  # somebody else has removed it


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
    except OSError:  # somebody uses it, or it cannot be renamed
        return False
    finally:
        os.close(opened)
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def _sweep(place: Path, now: float) -> None:
    """Removes what somebody who ended has left behind while it removed it."""
    for used, directory in list(_used(place)):
        if directory.name.startswith(REMOVED_PREFIX) and now - used > MIN_AGE_S:
            shutil.rmtree(directory, ignore_errors=True)


def _is_at(directory: Path, key: tuple[int, int]) -> bool:
    try:
        found = directory.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == key
