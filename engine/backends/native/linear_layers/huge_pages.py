"""Allocates packed weights in huge pages: a decode step reads all weights, and would wait for address translations.

A model's weights may each be smaller than a huge page, so several share a mapping.
"""

import mmap
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

MAPPING_BYTES = 32 << 20
"""Bytes of a shared mapping; larger tensors (above half of it) get a mapping of their own."""
CACHE_LINE_BYTES = 64
"""Alignment of weights."""


class HugePages:
    """Allocates memory without freeing it: a mapping ends with its last tensor."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._mapping: mmap.mmap | None = None
        self._taken = 0

    def empty(self, size: int) -> Tensor:
        """Returns new memory `[size]` uint8, aligned to a cache line; it costs no memory before it is used."""
        if size > MAPPING_BYTES // 2:
            return _tensor(_map(size), 0, size)
        with self._lock:
            if self._mapping is None or self._taken + size > MAPPING_BYTES:
                self._mapping, self._taken = _map(MAPPING_BYTES), 0
            begin, self._taken = self._taken, self._taken + -(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
            return _tensor(self._mapping, begin, size)


def _tensor(mapping: mmap.mmap, begin: int, size: int) -> Tensor:
    return torch.frombuffer(mapping, dtype=torch.uint8)[begin : begin + size]


def _map(size: int) -> mmap.mmap:
    """Maps private memory; shared mappings, mmap's default, seldom get huge pages."""
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel that was built without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
