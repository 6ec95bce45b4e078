"""Bounds what is under way on one link by cumulative credit, and gives turns to the handoffs that share it.

Offsets count all payload bytes that were ever sent on the link. The receiver reports the highest offset that it has
seen, so bytes that were lost on the way are given back as soon as anything after them arrives.
"""

from collections import deque

MAX_LINK_OFFSET = 1 << 61
"""No link sends so many bytes; such an offset is a mistake, and would not fit into an answer."""


class SendWindow:
    """Keeps, at a link's sending end, how far it has sent and how far it may send."""

    def __init__(self) -> None:
        self.sent = 0  # offset behind the last byte that has left
        self.seen = 0  # offset up to which the peer has seen the link
        self.limit = 0  # offset up to which the peer allows to send
        self.room = MAX_LINK_OFFSET  # bytes that the channel itself can keep under way

    def credit(self, seen: int, limit: int) -> None:
        """Takes the peer's word. A late or repeated one changes nothing; nothing was seen that was not sent."""
        self.seen = max(self.seen, min(seen, self.sent))
        self.limit = max(self.limit, limit)

    def open_for(self, size: int) -> bool:
        """Tells whether `size` bytes may leave. More than the window go alone, when nothing else is under way."""
        if self.seen == self.sent:
            return self.limit > 0
        return self.sent + size <= min(self.limit, self.seen + self.room)

    def send(self, size: int) -> int:
        """Counts `size` bytes as sent; returns the offset before them."""
        offset = self.sent
        self.sent += size
        return offset


class LinkRate:
    """Measures how fast a link is: bytes over the time from a payload's leaving to the Credit that covers it.

    Only a payload that leaves when many bytes are under way says something about the link; others wait for its delay.
    The fastest of the last ones counts (as in BBR: Cardwell et al., "BBR: congestion-based congestion control", 2016).
    """

    def __init__(self, busy: int) -> None:
        self._busy = busy  # bytes that have to be under way for a measurement
        self._under_way: deque[tuple[int, int, float]] = deque()  # end offset, bytes under way up to it, when it left
        self._last: deque[float] = deque(maxlen=64)  # bytes per second

    def left(self, end: int, under_way: int, now: float) -> None:
        """Notes that a payload has left, which ends at offset `end`; with it `under_way` bytes are under way."""
        if under_way >= self._busy:
            self._under_way.append((end, under_way, now))

    def covered(self, seen: int, now: float) -> None:
        """Notes that everything before offset `seen` has arrived."""
        while self._under_way and self._under_way[0][0] <= seen:
            _, size, since = self._under_way.popleft()
            self._last.append(size / max(now - since, 1e-9))

    @property
    def gigabytes_per_second(self) -> float:
        """Returns the fastest of the last measurements; 0 while the link was never busy."""
        return max(self._last, default=0.0) / 1e9


class ReceiveWindow:
    """Keeps, at a link's receiving end, how far bytes were seen or lost."""

    def __init__(self, window: int) -> None:
        self._window = max(1, window)
        self.seen = 0

    @property
    def limit(self) -> int:
        """Returns the byte offset up to which the sender may go."""
        return self.seen + self._window

    def saw(self, offset: int, size: int) -> bool:
        """Notes that a payload, or a probe of size 0, was read: everything before it was read too, or never will be.

        Returns False for numbers that no link can have.
        """
        if not (0 <= offset <= MAX_LINK_OFFSET and 0 <= size <= MAX_LINK_OFFSET):
            return False
        self.seen = max(self.seen, offset + size)
        return True


class RoundRobin:
    """Gives handoffs turns, round robin: each member sends one payload per round."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._members: set[int] = set()

    def join(self, handoff: int) -> None:
        """Gives a handoff the last place, unless it has one."""
        if handoff not in self._members:
            self._members.add(handoff)
            self._order.append(handoff)

    def leave(self, handoff: int) -> None:
        """Takes the handoff's place away, if it has one."""
        if handoff in self._members:
            self._members.discard(handoff)
            self._order.remove(handoff)

    def first(self) -> int | None:
        """Returns the handoff whose turn it is; None if there are no members."""
        return self._order[0] if self._order else None

    def turn(self) -> None:
        """Moves the first, who has had its turn, to the last place."""
        self._order.rotate(-1)
