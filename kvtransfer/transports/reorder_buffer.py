"""Puts payloads that came over several connections of one link into the order in which they left. Pure.

Each begins with a frame that counts the payloads of the session. What comes early waits, in bounded bytes, for what is
before it; where that is lost, nothing passes any more, and the link ends by its sender's deadlines, or at once: a
connection that is lost is a lost link.
"""

from typing import Generic, TypeVar

from contracts.errors import MessageError

COUNT_BYTES = 8
"""Bytes of a count."""
MAX_AHEAD = 1 << 16
"""So far ahead of the one that is missing may a payload be."""


Payload = TypeVar("Payload")


def counted(number: int) -> bytes:
    """Returns the frame that a payload begins with."""
    return number.to_bytes(COUNT_BYTES, "little")


class ReorderBuffer(Generic[Payload]):
    """Holds the payloads of one session that came early."""

    def __init__(self, most: int) -> None:
        """Takes the bytes that may be held."""
        self._most = most
        self._next = 0
        self._held: dict[int, tuple[int, Payload]] = {}
        self._size = 0

    def take(self, count: bytes, size: int, message: Payload) -> list[Payload]:
        """Returns the messages whose turn has come, in order: none, or this one and those that waited for it.

        Raises `MessageError` for a count that no sender has, or that was there, and for more bytes than may be held.
        """
        number = int.from_bytes(count, "little")
        if len(count) != COUNT_BYTES or not self._next <= number < self._next + MAX_AHEAD or number in self._held:
            raise MessageError("a payload with a count that was there, or that cannot be")
        if number != self._next and self._size + size > self._most:
            raise MessageError("more payloads ahead of one that is missing than the window has")
        self._held[number] = (size, message)
        self._size += size
        ready = []
        while self._next in self._held:
            done, found = self._held.pop(self._next)
            self._size -= done
            self._next += 1
            ready.append(found)
        return ready
