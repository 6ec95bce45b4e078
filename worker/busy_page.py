"""A page of memory that the workers of one host share, so that a lone busy worker has all cores and two halve them.

Each worker owns one slot: its process id and whether it computes now. Slots of processes that are gone are reused.
Without it two workers of two threads each on two cores spin against each other, and decode falls to a quarter.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

SLOT = struct.Struct("<QQ")  # process id, busy
SLOTS = 64


class BusyPage:
    """One worker's view of the page. An empty path is a page of its own."""

    def __init__(self, path: str, cores: int, set_threads: Callable[[int], None]) -> None:
        self._cores = cores
        self._set_threads = set_threads
        self._threads = 0
        if path:
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.truncate(SLOT.size * SLOTS)
                self._page = mmap.mmap(file.fileno(), SLOT.size * SLOTS)
                self._slot = self._claim()
                fcntl.flock(file, fcntl.LOCK_UN)  # the mapping keeps the file open, and so the lock
        else:
            self._page = mmap.mmap(-1, SLOT.size * SLOTS)
            self._slot = self._claim()

    def enter(self, useful: int) -> None:
        """A step begins that is worth `useful` threads: says so, and takes at most this worker's part of the cores."""
        SLOT.pack_into(self._page, self._slot * SLOT.size, os.getpid(), 1)
        busy = sum(1 for _, flag in SLOT.iter_unpack(self._page[:]) if flag)
        threads = max(1, min(useful, self._cores // max(1, busy)))
        if threads != self._threads:
            self._set_threads(threads)
            self._threads = threads

    def leave(self) -> None:
        """Nothing to compute."""
        SLOT.pack_into(self._page, self._slot * SLOT.size, os.getpid(), 0)

    def sweep(self) -> None:
        """Frees the slots of processes that died while busy."""
        for slot, (pid, _) in enumerate(SLOT.iter_unpack(self._page[:])):
            if pid and not Path(f"/proc/{pid}").exists():
                SLOT.pack_into(self._page, slot * SLOT.size, 0, 0)

    def close(self) -> None:
        """Gives the slot back."""
        SLOT.pack_into(self._page, self._slot * SLOT.size, 0, 0)
        self._page.close()

    def _claim(self) -> int:
        self.sweep()
        for slot, (pid, _) in enumerate(SLOT.iter_unpack(self._page[:])):
            if pid == 0:
                SLOT.pack_into(self._page, slot * SLOT.size, os.getpid(), 0)
                return slot
        raise RuntimeError(f"more than {SLOTS} workers share one busy page")
