"""A ring of shared memory between two processes of one host: byte n of a link lies at n modulo the ring's size.

The sender makes it, and hands it over through a Unix socket (`ring_socket.py`). Headers and credits, which pass over
the control socket, give the positions of payloads and of free space.
"""

import mmap

from infra.memory.shared_mapping import check_shared


class Ring:
    """One process's mapping of the memory."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Maps a ring; the descriptor stays the caller's. Raises `OSError` for memory of another size, or unsealed."""
        check_shared(descriptor, size)
        self.size = size
        self._bytes = memoryview(mmap.mmap(descriptor, size))

    def views(self, offset: int, size: int) -> list[memoryview]:
        """Returns the memory of `size` bytes from the link's byte `offset` on: one view, or two around the end."""
        begin = offset % self.size
        end = begin + size
        if end <= self.size:
            return [self._bytes[begin:end]]
        return [self._bytes[begin:], self._bytes[: end - self.size]]

    def close(self) -> None:
        """Closes this end. The memory is freed with its last view."""
        self._bytes.release()
