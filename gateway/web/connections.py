"""Bounds the connections of a gateway: at the bound, one that waits for nothing makes room for the next."""

from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """Is a connection that can be closed from here."""

    def close_idle(self) -> None:
        """Closes it; it is not in the middle of an answer."""


C = TypeVar("C", bound=Closable)


class Connections(Generic[C]):
    """Knows what each open connection does, at most `most` of them. Pure.

    A connection is *new* until the head of its first request has come, then *busy* up to the end of the answer, then
    *kept*. What is not busy is idle, and can be closed without harm: clients open another one.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._new: dict[C, None] = {}  # in the order of their beginning
        self._kept: dict[C, None] = {}  # in the order of their last answer
        self._busy: set[C] = set()

    def __len__(self) -> int:
        return len(self._new) + len(self._kept) + len(self._busy)

    def opened(self, connection: C) -> bool:
        """Takes a connection in, and closes the oldest idle one for it if need be. False: all are busy, it has none."""
        if len(self) >= self.most:
            oldest = next(iter(self._new or self._kept), None)
            if oldest is None:
                return False
            self.lost(oldest)
            oldest.close_idle()
        self._new[connection] = None
        return True

    def busy(self, connection: C) -> None:
        if connection in self._new or connection in self._kept:
            self.lost(connection)
            self._busy.add(connection)

    def kept(self, connection: C) -> None:
        if connection in self._busy:
            self._busy.discard(connection)
            self._kept[connection] = None

    def lost(self, connection: C) -> None:
        self._new.pop(connection, None)
        self._kept.pop(connection, None)
        self._busy.discard(connection)
