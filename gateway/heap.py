"""Keeps large buffers out of the heap, so that their memory is returned to the system, and makes collections rare."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LARGE_BUFFER_BYTES = 128 << 10  # bytes, glibc's own first choice
GC_THRESHOLD_OBJECTS = 50_000  # new objects between two collections of the youngest generation; 700 by default
_M_MMAP_THRESHOLD = -3  # of mallopt(3)


def keep_large_buffers_apart() -> bool:
    """Has the C library map each large buffer separately. Returns whether that is supported.

    glibc raises its limit to the size of each mapped buffer that is freed, up to 32 MiB: after the first body of 4 MB,
    bodies and prompts would be allocated in the heap, between small lasting objects, and the heap would never shrink.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES) == 1


def settle_heap() -> None:
    """Excludes all current objects from garbage collection, and makes collections rare.

    With Python's own threshold collections took a third of the time of a streamed token: each token leaves objects, and
    each full collection visited the tokenizer and every imported module.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, 20, 100)


@contextmanager
def rare_collections(new_objects: int) -> Iterator[None]:
    """Sets the collector's threshold to `new_objects` until the end, for work that makes few reference cycles."""
    before = gc.get_threshold()
    gc.set_threshold(new_objects, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
