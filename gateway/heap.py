"""Keeps large buffers out of the heap, so that their memory goes back to the system when they are freed."""

import ctypes
import sys

LARGE = 128 << 10  # bytes, glibc's own first choice
_M_MMAP_THRESHOLD = -3  # of mallopt(3)


def keep_large_buffers_apart() -> bool:
    """Has the C library map each large buffer by itself, for good. Returns whether it could be told.

    glibc raises its limit to the size of each mapped buffer that is freed, up to 32 MiB: after the first body of 4 MB,
    bodies and prompts are laid into the heap, between small things that stay, and the heap never shrinks.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, LARGE) == 1
