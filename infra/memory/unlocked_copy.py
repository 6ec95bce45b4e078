"""Copies bytes while other threads run: assigning to a memoryview or joining holds Python's lock all the while."""

from collections.abc import Sequence

import numpy as np

MIN_UNLOCKED_BYTES = 16 << 10  # a smaller copy takes less time than getting the lock back


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copies `source` into `target`, of the same size; both are contiguous bytes."""
    if len(source) < MIN_UNLOCKED_BYTES:
        target[:] = source
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def joined(parts: Sequence[memoryview | bytes]) -> memoryview | bytes:
    """Returns the concatenation of contiguous bytes, without a copy if there is only one part."""
    if len(parts) == 1:
        return parts[0]
    whole, at = np.empty(sum(map(len, parts)), np.uint8).data, 0
    for part in parts:
        copy_bytes(whole[at : at + len(part)], memoryview(part))
        at += len(part)
    return whole
