"""A ring of shared memory between two processes of one host: byte n of a link lies at n modulo the ring's size.

It is an unnamed file. The other process opens it through this process's entry in /proc, which the system allows only to
the same user; nothing needs removal, however either process ends. A mark in front distinguishes it from a file with the
same number on another host. Headers and credits, which pass over a socket, give the positions of payloads and of free
space.
"""

import fcntl
import mmap
import os
from hmac import compare_digest

MARK_BYTES = 16  # the mark is at the start of the first page; the ring begins with the second


class Ring:
    """One process's mapping of the memory."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Takes a ring's descriptor. Closes it and raises `OSError` if it cannot be mapped."""
        self.size = size
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._descriptor = descriptor
        try:
            self._memory = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE + size))
        except BaseException:
            os.close(descriptor)
            raise
        self._bytes = self._memory[mmap.PAGESIZE :]

    @classmethod
    def make(cls, size: int, mark: bytes) -> "Ring":
        """Makes a ring of `size` bytes, whose pages cost nothing before they are used. Raises `OSError`."""
        descriptor = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE + size)
            # If it could shrink, processes that access the removed pages would crash.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except OSError:
            os.close(descriptor)
            raise
        ring = cls(descriptor, size)
        ring._memory[:MARK_BYTES] = mark
        return ring

    @classmethod
    def open(cls, path: str, size: int, mark: bytes) -> "Ring":
        """Opens another process's ring. Raises `OSError` if it is inaccessible, or has another size or mark."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(descriptor).st_size != mmap.PAGESIZE + size:
            os.close(descriptor)
            raise OSError(f"{path} is another file")
        ring = cls(descriptor, size)
        if not compare_digest(bytes(ring._memory[:MARK_BYTES]), mark):
            ring.close()
            raise OSError(f"{path} is another file")
        return ring

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
            view[:] = part[at : at + len(view)]
            at += len(view)

    def close(self) -> None:
        """Closes this end. The memory is freed with its last view."""
        os.close(self._descriptor)
        self._bytes.release()
        self._memory.release()
