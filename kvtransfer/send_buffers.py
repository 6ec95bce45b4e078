"""Memory for sealed payloads, used again once the socket has sent what is in it.

Fresh memory comes page by page from the system, which takes a fifth of the time that sealing does.
"""

from collections import deque

import numpy as np
import zmq

KEPT = 8
"""Buffers that stay when nothing is under way."""


class SendBuffers:
    """Of one channel, oldest first: the socket is done with them in this order."""

    def __init__(self) -> None:
        self._lent: deque[tuple[zmq.MessageTracker, memoryview]] = deque()

    def take(self, size: int) -> memoryview:
        """At least `size` bytes that nobody reads any more."""
        while len(self._lent) > KEPT and self._lent[0][0].done:
            self._lent.popleft()
        if self._lent and self._lent[0][0].done:
            buffer = self._lent.popleft()[1]
            if len(buffer) >= size:
                return buffer
        return np.empty(size, np.uint8).data

    def lend(self, buffer: memoryview, tracker: zmq.MessageTracker) -> None:
        """The socket reads it until the tracker is done."""
        self._lent.append((tracker, buffer))
