"""Ignores peers for a while that send too many malformed frames in a second. Takes bounded memory."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Peer = TypeVar("Peer", bound=Hashable)
MAX_PEERS = 1024  # peers counted separately; the oldest is dropped for a new one


class MalformedFrames(Generic[Peer]):
    """Counts malformed frames by peer."""

    def __init__(self, a_second: int, cut_off: float) -> None:
        self.limit = a_second
        self._cut_off = cut_off
        self._counts: dict[Peer, tuple[float, int]] = {}  # start of the second, malformed frames in it
        self._until: dict[Peer, float] = {}

    def count(self, peer: Peer, now: float) -> bool:
        """Counts a malformed frame; returns True if the peer is cut off because of it."""
        begun, count = self._counts.pop(peer, (now, 0))
        begun, count = (begun, count + 1) if now < begun + 1 else (now, 1)
        if count <= self.limit:
            _put(self._counts, peer, (begun, count))
            return False
        _put(self._until, peer, now + self._cut_off)
        return True

    def listens(self, peer: Peer, now: float) -> bool:
        """Whether frames of this peer are read."""
        until = self._until.get(peer)
        if until is None:
            return True
        if now < until:
            return False
        del self._until[peer]
        return True


Value = TypeVar("Value")


def _put(entries: dict[Peer, Value], peer: Peer, value: Value) -> None:
    entries[peer] = value
    if len(entries) > MAX_PEERS:
        del entries[next(iter(entries))]
