"""Files whose lock shows that their writer lives: the kernel releases the lock at the end of the process."""

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType


class HeldFile:
    """Creates `path` with `content`, locked until it is closed, which removes it."""

    def __init__(self, path: Path, content: str) -> None:
        self.path = path
        self._descriptor = _create_locked(path, content)

    def replace(self, content: str) -> None:
        """Replaces the content atomically; a reader always sees a locked file."""
        descriptor = _create_locked(self.path, content)
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def __enter__(self) -> "HeldFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _create_locked(path: Path, content: str) -> int:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Locked before the rename: a reader that finds the name finds the lock.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.write(descriptor, data := content.encode()) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        part.replace(path)
    except OSError:  # the disk is full: remove the partial file
        os.close(descriptor)
        part.unlink(missing_ok=True)
        raise
    return descriptor


def is_held(path: Path) -> bool:
    """Returns whether the process that wrote `path` lives; False if there is no such file.

    An unlocked file whose name belongs to another file meanwhile was replaced by a living writer.
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
