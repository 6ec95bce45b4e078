"""Copies bytes while other threads run: assigning to a memoryview holds Python's lock for the whole copy."""

import numpy as np

MIN_UNLOCKED_BYTES = 16 << 10  # a smaller copy takes less time than getting the lock back


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copies `source` into `target`, of the same size; both are contiguous bytes."""
    if len(source) < MIN_UNLOCKED_BYTES:
        target[:] = source
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
