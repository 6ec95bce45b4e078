"""Tells whether a file has changed since it was read."""

import os
from pathlib import Path

FileVersion = tuple[int, int, int, int]
"""Times of modification and of change (ns), bytes, and inode. Inodes alone are reused."""


def file_version(path: str | Path) -> FileVersion | None:
    """Returns a value that differs after a change of the file; None if the file cannot be found."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
