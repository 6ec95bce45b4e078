"""Limits the connections of a gateway: at the limit, the oldest idle connection is closed for a new one."""

from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A connection that can be closed from here."""

    def close_idle(self) -> None:
        """Closes the connection, which is not in the middle of an answer."""


C = TypeVar("C", bound=Closable)


class Connections(Generic[C]):
    """The state of each open connection, at most `max_connections`. Pure.

    A connection is *new* until the head of its first request has come, then *busy* up to the end of the answer, then
    *kept*. Connections that are not busy are idle, and can be closed without harm: clients open another one.
    """

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self._new: dict[C, None] = {}  # in the order of their opening
        self._kept: dict[C, None] = {}  # in the order of their last answer
        self._busy: set[C] = set()

    def __len__(self) -> int:
        return len(self._new) + len(self._kept) + len(self._busy)

    def opened(self, connection: C) -> bool:
        """Adds a connection, and closes the oldest idle one if needed. Returns False if all others are busy."""
        if len(self) >= self.max_connections:
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

    def answered(self, connection: C) -> None:
        if connection in self._busy:
            self._busy.discard(connection)
            self._kept[connection] = None

    def lost(self, connection: C) -> None:
        self._new.pop(connection, None)
        self._kept.pop(connection, None)
        self._busy.discard(connection)
