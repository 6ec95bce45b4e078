"""Bounds what is under way on one link by cumulative credit, and gives turns to the handoffs that share it.

Offsets count all payload bytes that were ever sent on the link. The receiver reports the highest offset that it has
seen, so bytes that were lost on the way are given back as soon as anything after them arrives.
"""

from collections import deque

FARTHEST = 1 << 61
"""No link sends so many bytes; such an offset is a mistake, and would not fit into an answer."""


class SendWindow:
    """The sender's end: how far it has sent, how far it may."""

    def __init__(self) -> None:
        self.sent = 0
        self.seen = 0
        self.limit = 0
        self.room = FARTHEST  # bytes that the channel itself can keep under way

    def credit(self, seen: int, limit: int) -> None:
        """Late and repeated credits change nothing; a peer cannot have seen what was not sent."""
        self.seen = max(self.seen, min(seen, self.sent))
        self.limit = max(self.limit, limit)

    def open_for(self, size: int) -> bool:
        """May `size` bytes leave? A payload larger than the window goes alone, when nothing else is on the way."""
        if self.seen == self.sent:
            return self.limit > 0
        return self.sent + size <= min(self.limit, self.seen + self.room)

    def send(self, size: int) -> int:
        """Takes `size` bytes; returns the offset before them."""
        offset = self.sent
        self.sent += size
        return offset


class LinkRate:
    """How fast the link is: bytes over time from a payload's leaving to the Credit that covers it.

    Only a payload that leaves when many bytes are under way says something about the link; others wait for its delay.
    The fastest of the last ones counts (as in BBR: Cardwell et al., "BBR: congestion-based congestion control", 2016).
    """

    def __init__(self, busy: int) -> None:
        self._busy = busy  # bytes under way
        self._under_way: deque[tuple[int, int, float]] = deque()  # end, bytes up to it that are under way, since when
        self._last: deque[float] = deque(maxlen=64)

    def left(self, end: int, under_way: int, now: float) -> None:
        """A payload has left, up to offset `end`; with it `under_way` bytes are."""
        if under_way >= self._busy:
            self._under_way.append((end, under_way, now))

    def covered(self, seen: int, now: float) -> None:
        """Everything before `seen` has arrived."""
        while self._under_way and self._under_way[0][0] <= seen:
            _, size, since = self._under_way.popleft()
            self._last.append(size / max(now - since, 1e-9))

    @property
    def gigabytes_per_second(self) -> float:
        """0 while the link was never busy."""
        return max(self._last, default=0.0) / 1e9


class ReceiveWindow:
    """The receiver's end of one link: how far bytes were seen or lost."""

    def __init__(self, window: int) -> None:
        self._window = max(1, window)
        self.seen = 0

    @property
    def limit(self) -> int:
        """Byte offset up to which the sender may go."""
        return self.seen + self._window

    def saw(self, offset: int, size: int) -> bool:
        """A payload, or a probe of size 0, was read; everything before it was read or will never be.

        False: these are no numbers of a link.
        """
        if not (0 <= offset <= FARTHEST and 0 <= size <= FARTHEST):
            return False
        self.seen = max(self.seen, offset + size)
        return True


class Turns:
    """Round robin: each member gets one payload per round."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._members: set[int] = set()

    def join(self, handoff: int) -> None:
        """Takes a place at the end, unless it has one."""
        if handoff not in self._members:
            self._members.add(handoff)
            self._order.append(handoff)

    def leave(self, handoff: int) -> None:
        """Gives its place up."""
        if handoff in self._members:
            self._members.discard(handoff)
            self._order.remove(handoff)

    def first(self) -> int | None:
        """Whose turn it is."""
        return self._order[0] if self._order else None

    def turn(self) -> None:
        """The first has had its turn."""
        self._order.rotate(-1)
