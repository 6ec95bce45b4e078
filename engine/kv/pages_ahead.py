"""Gives memory its pages a while before it is used: the first at the start, the rest on a thread that mostly rests.

An anonymous mapping has no pages until they are touched. The kernel then clears one and, on a virtual machine, its host
may have to find one first: 2 MiB were seen to take 5 ms. A step that enters new blocks would pay that in every layer,
and with it everybody whose decode is in the step. So pages are made ahead of use, but not for all of a pool: what is
never used should cost no memory. (madvise(2), MADV_POPULATE_WRITE, Linux 5.14; where it is missing, steps pay.)

The pages for the first requests are made before the worker is ready. Made by the resting thread, they took five seconds
from a first burst of requests: each layer of a step waits for all its cores, and a thread had one of them now and then.

The thread has the priority of all others. With a lower one it would hold Python's lock, and the kernel's on the
process's mappings, for as long as busier threads of the machine kept it from a processor: then nothing in the process
goes on, and on a busy machine its peers took a worker for dead that had only begun to use its pool.
"""

import ctypes
import mmap
import threading
import time

AHEAD_BYTES = 512 << 20
"""Bytes, over all layers and groups, that get pages beyond the highest block in use."""
STRETCH_BYTES = 256 << 10
"""Bytes of a layer in one call, during which the kernel locks the mapping."""
REST_FACTOR = 3.0
"""Rest after a call, as a multiple of its duration: the thread uses at most a quarter of a processor."""
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which Python has no name for
_madvise = ctypes.CDLL(None).madvise  # `mmap.madvise` would hold Python's lock meanwhile


class PagesAhead:
    """Makes pages in a mapping of `layers` arrays of `blocks` blocks of `block_bytes`, from their beginnings on."""

    def __init__(self, memory: mmap.mmap, layers: int, blocks: int, block_bytes: int, ahead: int = AHEAD_BYTES) -> None:
        self._memory = memory  # kept as long as a thread is at work on it
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._layers = layers
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._ahead = ahead // (layers * block_bytes)
        self._stretch = max(1, STRETCH_BYTES // block_bytes)
        self._goal = 0  # blocks that are to have pages
        self._done = 0  # blocks that have pages in all layers
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None

    def begin(self) -> None:
        """Makes the pages of the first blocks, and returns when they are there. To be called before any other."""
        self._goal = min(self._blocks, 1 + self._ahead)
        while self._done < self._goal:
            self._make(min(self._goal, self._done + self._stretch), rest=0.0)

    def reach(self, block: int) -> None:
        """Notes that this block is or will soon be in use. Callable from any thread; returns at once."""
        if self._done == self._blocks or self._done - block > self._ahead // 2:
            return  # still far enough
        with self._lock:
            self._goal = min(self._blocks, max(self._goal, block + 1 + self._ahead))
            if self._worker is None and self._done < self._goal:
                self._worker = threading.Thread(target=self._work, name="pages-ahead", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                last = min(self._goal, self._done + self._stretch)
                if self._done >= last:
                    self._worker = None
                    return
            self._make(last, REST_FACTOR)

    def _make(self, last: int, rest: float) -> None:
        """Makes the pages of the next blocks of all layers, up to `last` - 1."""
        supported = all([self._populate(layer, self._done, last, rest) for layer in range(self._layers)])
        self._done = last if supported else self._blocks

    def _populate(self, layer: int, first: int, last: int, rest: float) -> bool:
        """Makes the pages of blocks `first` … `last` - 1 of a layer; False: the kernel cannot, or has no memory."""
        begin = (layer * self._blocks + first) * self._block_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        end = (layer * self._blocks + last) * self._block_bytes
        began = time.monotonic()
        status = _madvise(ctypes.c_void_p(self._address + begin), ctypes.c_size_t(end - begin), POPULATE_WRITE)
        time.sleep(rest * (time.monotonic() - began))
        return bool(status == 0)
