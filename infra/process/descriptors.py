"""Raises this process's limit of open files and sockets to the system's maximum."""

import resource


def raise_limit() -> int:
    """Sets the soft limit of descriptors to the hard one if possible, and returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS names a hard limit that it does not grant
        return soft
    return hard
