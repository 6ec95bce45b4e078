"""A page of memory that the workers of one host share, so that a lone busy worker has all cores and two halve them.

Each worker owns one slot: its process id and whether it computes now. Slots of processes that are gone are reused.
Without it two workers of two threads each on two cores spin against each other, and decode falls to a quarter.

Cores are divided anew at each layer of a step, for a step may be long: a worker that begins one alone gives cores back
as soon as another one has something to compute, and takes them again when that one rests. No result depends on it.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

SLOTS = 64
PID = struct.Struct("<Q")
FLAGS = PID.size * SLOTS  # behind the process ids, a byte each: 1 is busy. One look at them is one slice
PAGE = FLAGS + SLOTS


class BusyPage:
    """One worker's view of the page. An empty path is a page of its own."""

    def __init__(self, path: str, cores: int, set_threads: Callable[[int], None]) -> None:
        self._cores = cores
        self._set_threads = set_threads
        self._threads = 0
        self._useful = 1
        if path:
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.truncate(PAGE)
                self._page = mmap.mmap(file.fileno(), PAGE)
                self._slot = self._claim()
                fcntl.flock(file, fcntl.LOCK_UN)  # the mapping keeps the file open, and so the lock
        else:
            self._page = mmap.mmap(-1, PAGE)
            self._slot = self._claim()

    def enter(self, useful: int) -> None:
        """A step begins that is worth `useful` threads: says so, and takes at most this worker's part of the cores."""
        self._page[FLAGS + self._slot] = 1
        self._useful = useful
        self.divide()

    def divide(self) -> None:
        """Inside a step: takes this worker's part as it is now. Of cores that are left over, the first get one each."""
        flags = self._page[FLAGS:PAGE]
        busy, before = max(1, flags.count(1)), flags.count(1, 0, self._slot)
        part = self._cores // busy + (before < self._cores % busy)
        threads = max(1, min(self._useful, part))
        if threads != self._threads:
            self._set_threads(threads)
            self._threads = threads

    def leave(self) -> None:
        """Nothing to compute."""
        self._page[FLAGS + self._slot] = 0

    def sweep(self) -> None:
        """Frees the slots of processes that died while busy."""
        for slot, pid in enumerate(self._pids()):
            if pid and not Path(f"/proc/{pid}").exists():
                self._write(slot, 0)

    def close(self) -> None:
        """Gives the slot back."""
        self._write(self._slot, 0)
        self._page.close()

    def _claim(self) -> int:
        self.sweep()
        for slot, pid in enumerate(self._pids()):
            if pid == 0:
                self._write(slot, os.getpid())
                return slot
        raise RuntimeError(f"more than {SLOTS} workers share one busy page")

    def _pids(self) -> list[int]:
        return [pid for (pid,) in PID.iter_unpack(self._page[:FLAGS])]

    def _write(self, slot: int, pid: int) -> None:
        """A slot's owner, who computes nothing yet."""
        self._page[FLAGS + slot] = 0
        PID.pack_into(self._page, slot * PID.size, pid)
