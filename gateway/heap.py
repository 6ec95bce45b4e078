"""Keeps large buffers out of the heap, so that their memory goes back to the system, and collections of it rare."""

import ctypes
import gc
import sys

LARGE_BUFFER_BYTES = 128 << 10  # bytes, glibc's own first choice
GC_THRESHOLD_OBJECTS = 50_000  # new objects between two collections of the youngest generation; 700 by default
_M_MMAP_THRESHOLD = -3  # of mallopt(3)


def keep_large_buffers_apart() -> bool:
    """Has the C library map each large buffer by itself, for good. Returns whether it could be told.

    glibc raises its limit to the size of each mapped buffer that is freed, up to 32 MiB: after the first body of 4 MB,
    bodies and prompts are laid into the heap, between small things that stay, and the heap never shrinks.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES) == 1


def settle_heap() -> None:
    """Takes everything that is there for what stays: collections look at it no more, and come seldom.

    With Python's own threshold they took a third of what a streamed token costs: each token leaves objects, and each
    full collection looked at the tokenizer and at every imported module.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, 20, 100)
