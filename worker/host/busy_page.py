"""Divides a host's cores among its workers through a shared page of memory: each busy worker gets an equal part.

Each worker has one slot: its process id, and whether it computes now. Slots of dead processes are reused. Without this,
two workers with two threads each on two cores spin against each other, and decode falls to a quarter of its speed.

Cores are divided anew at each layer, since a step may be long: a worker that started a step alone gives cores back as
soon as another one computes, and takes them again later. Results do not depend on it.
"""

import fcntl
import logging
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

MAX_SLOTS = 64
PID_FORMAT = struct.Struct("<Q")
FLAGS_OFFSET = PID_FORMAT.size * MAX_SLOTS  # offset of the busy flags, a byte each (1 is busy), which one slice reads
PAGE_BYTES = FLAGS_OFFSET + MAX_SLOTS
log = logging.getLogger("baton.worker")


class BusyPage:
    """One worker's slot in the page."""

    def __init__(self, path: str, cores: int, set_threads: Callable[[int], None]) -> None:
        """Takes a slot in the file at `path`, or in a private page if `path` is empty.

        `set_threads` is called with each new number of threads. Raises `OSError` if the file cannot be opened, and
        `RuntimeError` if no slot is left.
        """
        self._cores = cores
        self._set_threads = set_threads
        self._threads = 0
        self._useful = 1  # maximum useful threads of the running step
        if path:
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._page = mapped(file.fileno())
                self._slot = self._claim()
                fcntl.flock(file, fcntl.LOCK_UN)  # explicit, because the mapping keeps the file open, and so the lock
        else:
            self._page = mmap.mmap(-1, PAGE_BYTES)
            self._slot = self._claim()

    def enter(self, useful: int) -> None:
        """Begins a step with up to `useful` threads: marks this worker busy, and takes its share of the cores."""
        self._page[FLAGS_OFFSET + self._slot] = 1
        self._useful = useful
        self.divide()

    def divide(self) -> None:
        """Adjusts the threads to this worker's part during a step. Remaining cores go to the first busy slots."""
        flags = self._page[FLAGS_OFFSET:PAGE_BYTES]
        busy, before = max(1, flags.count(1)), flags.count(1, 0, self._slot)
        part = self._cores // busy + (before < self._cores % busy)
        threads = max(1, min(self._useful, part))
        if threads != self._threads:
            self._set_threads(threads)
            self._threads = threads

    def leave(self) -> None:
        self._page[FLAGS_OFFSET + self._slot] = 0

    def sweep(self) -> None:
        for slot, pid in enumerate(self._pids()):
            if pid and not Path(f"/proc/{pid}").exists():
                self._write(slot, 0)

    def close(self) -> None:
        self._write(self._slot, 0)
        self._page.close()

    def _claim(self) -> int:
        self.sweep()
        for slot, pid in enumerate(self._pids()):
            if pid == 0:
                self._write(slot, os.getpid())
                return slot
        raise RuntimeError(f"more than {MAX_SLOTS} workers share one busy page")

    def _pids(self) -> list[int]:
        return [pid for (pid,) in PID_FORMAT.iter_unpack(self._page[:FLAGS_OFFSET])]

    def _write(self, slot: int, pid: int) -> None:
        self._page[FLAGS_OFFSET + slot] = 0
        PID_FORMAT.pack_into(self._page, slot * PID_FORMAT.size, pid)


def mapped(descriptor: int) -> mmap.mmap:
    """Maps the shared page; a private page if the disk is full, since writing to the shared one would then crash."""
    try:
        os.posix_fallocate(descriptor, 0, PAGE_BYTES)
    except OSError as error:
        log.warning("the page of busy workers cannot be made (%s): this worker takes all cores", error.strerror)
        return mmap.mmap(-1, PAGE_BYTES)
    return mmap.mmap(descriptor, PAGE_BYTES)
