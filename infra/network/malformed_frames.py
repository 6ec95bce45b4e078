"""Cuts off peers for a while that send too much in a second that is no message. Takes bounded memory."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Peer = TypeVar("Peer", bound=Hashable)
MAX_PEERS = 1024
"""So many peers are counted apart; the oldest is forgotten for another one."""


class MalformedFrames(Generic[Peer]):
    """Counts malformed frames by peer, and knows which peers are cut off."""

    def __init__(self, a_second: int, cut_off: float) -> None:
        self.limit = a_second
        self._cut_off = cut_off
        self._counts: dict[Peer, tuple[float, int]] = {}  # the second's beginning, strikes in it
        self._until: dict[Peer, float] = {}

    def strike(self, peer: Peer, now: float) -> bool:
        """Counts one more; returns True if it is the one that cuts this peer off."""
        begun, count = self._counts.pop(peer, (now, 0))
        begun, count = (begun, count + 1) if now < begun + 1 else (now, 1)
        if count <= self.limit:
            _put(self._counts, peer, (begun, count))
            return False
        _put(self._until, peer, now + self._cut_off)
        return True

    def listens(self, peer: Peer, now: float) -> bool:
        """Tells whether what this peer sends is read at all."""
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
