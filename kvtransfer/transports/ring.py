"""A ring of shared memory between two processes of one host: byte n of a link lies at n modulo the ring's size.

The sender makes it, and hands it over through a Unix socket (`ring_socket.py`). It is an unnamed file (memfd), which
needs no room in /dev/shm and no removal: the system frees it after both mappings, however the processes end. Headers
and credits, which pass over the control socket, give the positions of payloads and of free space.
"""

import fcntl
import mmap
import os

from infra.process.unlocked_copy import copy_bytes

SEALS = 0x2 | 0x4  # fcntl's F_SEAL_SHRINK and F_SEAL_GROW, which only Linux has
"""If the file could shrink, a process that accessed the removed pages would crash."""


def ring_memory(size: int) -> int:
    """Returns the descriptor of a ring's memory, whose pages cost nothing before they are used. Raises `OSError`."""
    descriptor = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Ring:
    """One process's mapping of the memory."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Maps a ring; the descriptor stays the caller's. Raises `OSError` for memory of another size, or unsealed."""
        found = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)  # EINVAL for other files
        if found & SEALS != SEALS or os.fstat(descriptor).st_size != size:
            raise OSError("not the memory of a ring of this size")
        self.size = size
        self._bytes = memoryview(mmap.mmap(descriptor, size))

    def views(self, offset: int, size: int) -> list[memoryview]:
        """Returns the memory of `size` bytes from the link's byte `offset` on: one view, or two around the end."""
        begin = offset % self.size
        end = begin + size
        if end <= self.size:
            return [self._bytes[begin:end]]
        return [self._bytes[begin:], self._bytes[: end - self.size]]

    def write(self, offset: int, part: memoryview) -> None:
        """Copies a part to the link's bytes from `offset` on."""
        at = 0
        for view in self.views(offset, len(part)):
            copy_bytes(view, part[at : at + len(view)])
            at += len(view)

    def close(self) -> None:
        """Closes this end. The memory is freed with its last view."""
        self._bytes.release()
