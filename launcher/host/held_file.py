"""Tells by a file's lock whether its writer still lives: the kernel drops the lock however the process ends."""

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType


class HeldFile:
    """Creates `path` with `content`, locked until it is closed, which removes it."""

    def __init__(self, path: Path, content: str) -> None:
        self.path = path
        self._descriptor = _made(path, content)

    def replace(self, content: str) -> None:
        """Gives the file another content; a reader sees the old one or the new one, and always the lock."""
        descriptor = _made(self.path, content)
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        """Removes the file and lets go of the lock."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def __enter__(self) -> "HeldFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _made(path: Path, content: str) -> int:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Locked before it has its name: whoever finds the name finds the lock.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.write(descriptor, data := content.encode()) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        part.replace(path)
    except OSError:  # the disk is full: no part stays
        os.close(descriptor)
        part.unlink(missing_ok=True)
        raise
    return descriptor


def is_held(path: Path) -> bool:
    """Tells whether the process that wrote `path` still lives; False if there is no such file.

    A file without a lock whose name belongs to another file by now was replaced just now, by a writer that lives.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return not os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
