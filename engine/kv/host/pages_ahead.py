"""Populates memory pages before use: the first at start, the rest on a thread that mostly sleeps.

An anonymous mapping has no pages until they are touched. The kernel then clears a page and, on a virtual machine, the
host may have to find one first: 2 MiB were measured to take 5 ms. A step that enters new blocks would pay that in every
layer, and delay every decode in the step. Pages are therefore populated ahead of use, but not for the whole pool, since
unused blocks should cost no memory. (madvise(2), MADV_POPULATE_WRITE, Linux 5.14; if it is missing, steps pay.)

Memory that is shared gets no huge pages by itself, unless the machine's administrator allows them; each huge page is
then asked for: its first small page is populated, and collapsed (MADV_COLLAPSE, Linux 6.1) into a huge page.

The pages for the first requests are populated before the worker is ready. When the thread did that, a first burst of
requests took five seconds longer: each layer of a step waits for all its cores, and the thread occupied one of them.

The thread has normal priority. With a lower priority on a busy machine it could be descheduled while holding Python's
lock or the kernel's lock on the process's mappings, which stops the whole process: workers that had only begun to use
their pool were taken for dead by their peers.
"""

import ctypes
import mmap
import threading
import time

from infra.memory.shared_mapping import HUGE_PAGE_BYTES

AHEAD_BYTES = 512 << 20
"""Bytes, over all layers and groups, that are populated beyond the highest block in use."""
MAX_AHEAD_BLOCKS = 2048
"""Bound of the same in blocks: a small model's first requests need far less than `AHEAD_BYTES`."""
STRETCH_BYTES = 256 << 10
"""Bytes of a layer populated by one call, during which the kernel locks the mapping."""
REST_FACTOR = 3.0
"""Sleep after a call, as a multiple of its duration: the thread uses at most a quarter of a processor."""
POPULATE_WRITE, COLLAPSE = 23, 25  # MADV_POPULATE_WRITE and MADV_COLLAPSE, which Python has no names for
_madvise = ctypes.CDLL(None).madvise  # `mmap.madvise` would hold Python's lock during the call


def bytes_ahead(block_bytes: int, groups: int) -> int:
    """Returns the bytes of a group to populate ahead; `block_bytes`: of one block in all layers of the group."""
    return min(AHEAD_BYTES // groups, MAX_AHEAD_BLOCKS * block_bytes)


class PagesAhead:
    """Populates pages of a mapping of `layers` arrays of `blocks` blocks of `block_bytes`, in order."""

    def __init__(
        self,
        memory: mmap.mmap | memoryview,
        layers: int,
        blocks: int,
        block_bytes: int,
        ahead: int = AHEAD_BYTES,
        is_shared: bool = False,
    ) -> None:
        self._memory = memory  # kept alive while a thread uses it
        self._is_shared = is_shared
        self._size = layers * blocks * block_bytes
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._layers = layers
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._ahead = ahead // (layers * block_bytes)
        self._stretch = max(1, STRETCH_BYTES // block_bytes)
        self._goal = 0  # number of blocks to populate
        self._done = 0  # number of blocks populated in all layers
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None

    def begin(self) -> None:
        """Populates the pages of the first blocks. To be called before any other method."""
        self._goal = min(self._blocks, 1 + self._ahead)
        while self._done < self._goal:
            self._make(min(self._goal, self._done + self._stretch), rest=0.0)

    def reach(self, block: int) -> None:
        """Records that this block is or will soon be in use. Callable from any thread; returns at once."""
        if self._done == self._blocks or self._done - block > self._ahead // 2:
            return  # enough blocks are populated
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
        supported = all([self._populate(layer, self._done, last, rest) for layer in range(self._layers)])
        self._done = last if supported else self._blocks

    def _populate(self, layer: int, first: int, last: int, rest: float) -> bool:
        """Populates blocks `first` … `last` - 1 of a layer; False if the kernel cannot, or has no memory."""
        begin = (layer * self._blocks + first) * self._block_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        end = (layer * self._blocks + last) * self._block_bytes
        began = time.monotonic()
        populated = self._collapse(begin, end) if self._is_shared else self._advise(begin, end, POPULATE_WRITE)
        time.sleep(rest * (time.monotonic() - began))
        return populated

    def _collapse(self, begin: int, end: int) -> bool:
        """Populates the huge pages of a range, or its small pages where a huge page is refused."""
        for at in range(begin // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, end, HUGE_PAGE_BYTES):
            last = min(at + HUGE_PAGE_BYTES, self._size)
            self._advise(at, at + 1, POPULATE_WRITE)
            small = max(at, begin), min(last, end)
            if not self._advise(at, last, COLLAPSE) and not self._advise(*small, POPULATE_WRITE):
                return False
        return True

    def _advise(self, begin: int, end: int, advice: int) -> bool:
        return bool(_madvise(ctypes.c_void_p(self._address + begin), ctypes.c_size_t(end - begin), advice) == 0)
