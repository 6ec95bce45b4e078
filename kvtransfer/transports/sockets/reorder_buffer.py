"""Reorders payloads that came over several connections of one link into their sending order. Pure.

Each payload begins with a frame with its sequence number. Early payloads wait, in bounded bytes, for missing payloads.
If one is lost, the link ends by its sender's deadlines, or at once, since a lost connection ends the link.
"""

from typing import Generic, TypeVar

from contracts.errors import MessageError

COUNT_BYTES = 8  # bytes of a sequence number
MAX_AHEAD = 1 << 16  # maximum distance to the first missing payload


Payload = TypeVar("Payload")


def counted(number: int) -> bytes:
    """Returns the first frame of a payload: its sequence number."""
    return number.to_bytes(COUNT_BYTES, "little")


class ReorderBuffer(Generic[Payload]):
    """The early payloads of one session."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: bytes that may be held."""
        self._capacity = capacity
        self._next = 0
        self._held: dict[int, tuple[int, Payload]] = {}
        self._size = 0

    def take(self, count: bytes, size: int, message: Payload) -> list[Payload]:
        """Returns the messages that are in order now: none, or this one and the messages that waited for it.

        Raises `MessageError` for an impossible or repeated number, and if more bytes than allowed would be held.
        """
        number = int.from_bytes(count, "little")
        if len(count) != COUNT_BYTES or not self._next <= number < self._next + MAX_AHEAD or number in self._held:
            raise MessageError("a payload with a count that was there, or that cannot be")
        if number != self._next and self._size + size > self._capacity:
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
