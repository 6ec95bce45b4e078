"""Credit-based flow control of a link, its rate, and round robin among its handoffs.

Offsets count all payload bytes ever sent on the link. The receiver reports the highest offset it has seen, so lost
bytes are credited as soon as later bytes arrive.
"""

from collections import deque

HANDOFF_DECAY = 0.9  # weight of a handoff in the link's rate after the next handoff
MAX_LINK_OFFSET = 1 << 61  # a higher offset is a mistake, and would not fit into an answer


class SendWindow:
    """A link's sending end: the offsets up to which it has sent, and may send."""

    def __init__(self) -> None:
        self.sent = 0  # offset behind the last sent byte
        self.seen = 0  # offset up to which the peer has seen the link
        self.limit = 0  # offset up to which the peer allows sending
        self.capacity = MAX_LINK_OFFSET  # bytes that the channel can hold

    def credit(self, seen: int, limit: int) -> None:
        """Takes the peer's credit. Late and repeated credits change nothing; unsent bytes cannot be seen."""
        self.seen = max(self.seen, min(seen, self.sent))
        self.limit = max(self.limit, limit)

    def open_for(self, size: int) -> bool:
        """Whether `size` bytes may leave. A payload larger than the window is sent when nothing is under way."""
        if self.seen == self.sent:
            return self.limit > 0
        return self.sent + size <= min(self.limit, self.seen + self.capacity)

    def send(self, size: int) -> int:
        """Counts `size` bytes as sent; returns the offset before them."""
        offset = self.sent
        self.sent += size
        return offset


class LinkRate:
    """Measures a link's rate: bytes over the time from a payload's sending to the Credit that covers it.

    Only payloads sent while many bytes are under way are measured; others measure the delay. The fastest recent
    measurement counts (as in BBR: Cardwell et al., "BBR: congestion-based congestion control", 2016).
    """

    def __init__(self, busy: int) -> None:
        self._busy = busy  # minimum bytes under way for a measurement
        self._under_way: deque[tuple[int, int, float]] = deque()  # end offset, bytes under way up to it, sending time
        self._last: deque[float] = deque(maxlen=64)  # bytes per second

    def left(self, end: int, under_way: int, now: float) -> None:
        """Records a sent payload that ends at offset `end`, with `under_way` bytes in flight."""
        if under_way >= self._busy:
            self._under_way.append((end, under_way, now))

    def covered(self, seen: int, now: float) -> None:
        while self._under_way and self._under_way[0][0] <= seen:
            _, size, since = self._under_way.popleft()
            self._last.append(size / max(now - since, 1e-9))

    @property
    def gigabytes_per_second(self) -> float:
        """The fastest recent measurement; 0 if the link was never busy."""
        return max(self._last, default=0.0) / 1e9


class HandoffRate:
    """A link's rate over its last handoffs: bytes over the seconds in which something was to be sent."""

    def __init__(self) -> None:
        self._sent = self._sending = 0.0  # bytes and seconds of sent handoffs, with decaying weights

    def passed(self, size: int, seconds: float) -> None:
        """Adds a successful handoff: its bytes, and the seconds of sending."""
        self._sent = HANDOFF_DECAY * self._sent + size
        self._sending = HANDOFF_DECAY * self._sending + seconds

    @property
    def bytes_per_second(self) -> float:
        """Returns 0 before the first handoff."""
        return self._sent / self._sending if self._sending else 0.0


class ReceiveWindow:
    """A link's receiving end: the offset up to which bytes were seen or lost."""

    def __init__(self, window: int) -> None:
        self._window = max(1, window)
        self.seen = 0

    @property
    def limit(self) -> int:
        return self.seen + self._window

    def saw(self, offset: int, size: int) -> bool:
        """Records a payload, or a probe of size 0: all earlier bytes were read, or are lost.

        Returns False for impossible numbers.
        """
        if not (0 <= offset <= MAX_LINK_OFFSET and 0 <= size <= MAX_LINK_OFFSET):
            return False
        self.seen = max(self.seen, offset + size)
        return True


class RoundRobin:
    """Round robin among handoffs: each member sends one payload per round."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._members: set[int] = set()

    def join(self, handoff: int) -> None:
        if handoff not in self._members:
            self._members.add(handoff)
            self._order.append(handoff)

    def leave(self, handoff: int) -> None:
        if handoff in self._members:
            self._members.discard(handoff)
            self._order.remove(handoff)

    def first(self) -> int | None:
        """Returns the handoff whose turn it is; None without members."""
        return self._order[0] if self._order else None

    def second(self) -> int | None:
        """Returns the handoff whose turn is the one after; None with fewer than two members."""
        return self._order[1] if len(self._order) > 1 else None

    def turn(self) -> None:
        self._order.rotate(-1)
