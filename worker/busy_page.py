"""A page of memory that the workers of one host share, so that a lone busy worker has all cores and two halve them.

Each worker owns one slot: its process id and whether it computes now. Slots of processes that are gone are reused.
Without it two workers of two threads each on two cores spin against each other, and decode falls to a quarter.

Cores are divided anew at each layer of a step, for a step may be long: a worker that begins one alone gives cores back
as soon as another one has something to compute, and takes them again when that one rests. No result depends on it.

Equal parts are not what everybody needs: decodes have their pace, prompts their patience. A worker whose own are over
their time says that it is *late*. Who is in time then rests at each layer for as long as the layer took, and the late
one has its cores meanwhile. So each has at least half of what it would have, and all are late, or none, in the end.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

SLOTS = 64
PID = struct.Struct("<Q")
FLAGS = PID.size * SLOTS  # behind the process ids, a byte each. One look at them is one slice
PAGE = FLAGS + SLOTS
AT_REST, BUSY, LATE = range(3)
LONGEST_REST = 0.02  # s: the late one has had time to finish a layer, and looks again


class BusyPage:
    """One worker's view of the page. An empty path is a page of its own."""

    def __init__(
        self,
        path: str,
        cores: int,
        set_threads: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cores = cores
        self._set_threads = set_threads
        self._clock = clock
        self._rest = rest
        self._resumed = clock()  # when this worker last began to compute, or divided cores
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

    def enter(self, useful: int, late: bool = False) -> None:
        """A step begins that is worth `useful` threads: says so, and takes at most this worker's part of the cores.

        `late`: what it computes takes longer than it should.
        """
        self._page[FLAGS + self._slot] = LATE if late else BUSY
        self._useful = useful
        self._resumed = self._clock()
        self._take_part()

    def divide(self) -> None:
        """Between two layers: takes this worker's part as it is now, after a rest if others are late and it is not."""
        own = FLAGS + self._slot
        if self._page[own] != LATE and LATE in self._page[FLAGS:PAGE]:
            self._page[own] = AT_REST
            self._rest(min(LONGEST_REST, self._clock() - self._resumed))
            self._page[own] = BUSY
        self._resumed = self._clock()
        self._take_part()

    def _take_part(self) -> None:
        """Of cores that are left over, the first busy workers get one each."""
        flags = self._page[FLAGS:PAGE]
        busy = SLOTS - flags.count(AT_REST)
        before = self._slot - flags.count(AT_REST, 0, self._slot)
        part = self._cores // busy + (before < self._cores % busy)
        threads = max(1, min(self._useful, part))
        if threads != self._threads:
            self._set_threads(threads)
            self._threads = threads

    def leave(self) -> None:
        """Nothing to compute."""
        self._page[FLAGS + self._slot] = AT_REST

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
        self._page[FLAGS + slot] = AT_REST
        PID.pack_into(self._page, slot * PID.size, pid)
