"""Raises the number of files and sockets that this process may have open to what the system allows it."""

import resource


def raise_limit() -> int:
    """Sets the soft limit of open descriptors to the hard one where that works, and returns the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS names a hard limit that it does not grant
        return soft
    return hard
