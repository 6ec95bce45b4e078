"""A disk without room, for tests: the system refuses to let this process's files grow beyond a size."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room(limit: int) -> Iterator[None]:
    """Files take `limit` bytes and no more; a write that does not fit is done in part, and then fails with OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
