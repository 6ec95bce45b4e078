"""The sent payloads of one handoff: their digest, and which of them may still be read from this side's blocks."""

from contracts.messages.gateway import Way
from kvtransfer.digest import HandoffDigest
from kvtransfer.protocol.payloads import Payload
from kvtransfer.protocol.prefill_events import FrameDone, PayloadTaken


class SentPayloads:
    """Payloads in the order in which the channel took them, numbered from 0."""

    def __init__(self, trace: bool) -> None:
        """`trace` keeps each payload's digest, for tests."""
        self.digest = HandoffDigest(trace)
        self.count = 0
        self.size = 0  # bytes
        self.end = 0  # offset of the last payload's end in the link
        self.way: Way | None = None  # how the last payload was sent
        self.flying: dict[int, int] = {}  # payload number -> link offset of its end, while its blocks may still be read
        self.copied: dict[int, Payload] = {}  # payloads by number that a device still copies into the peer's pool
        self._seen = 0  # how far in the link the peer has seen

    def add(self, event: PayloadTaken) -> None:
        payload = event.payload
        if event.digest is None:
            self.copied[self.count] = payload
        else:
            self._digest(payload, event.digest)
        self.flying[self.count] = self.end = event.end
        self.way = event.way
        self.count += 1
        self.size += payload.size

    def frame_done(self, event: FrameDone) -> bool:
        """Records that a payload is no longer read. Returns whether a device copied it: its digest is known then."""
        self.flying.pop(event.number, None)
        payload = self.copied.pop(event.number, None)
        if payload is None:
            return False
        assert event.digest is not None, "a device gives the digest of what it has copied"
        self._digest(payload, event.digest)
        return True

    def link_seen(self, seen: int) -> None:
        """Records that the peer has seen the link up to byte offset `seen`."""
        self._seen = seen
        while self.flying and next(iter(self.flying.values())) <= seen:  # oldest first
            del self.flying[next(iter(self.flying))]

    def all_read(self) -> None:
        """Records that the peer has read all payloads."""
        self.flying.clear()

    @property
    def are_seen(self) -> bool:
        """Whether the peer has seen all sent payloads."""
        return self.end <= self._seen

    @property
    def are_read(self) -> bool:
        """Whether nothing reads this side's blocks any more."""
        return not self.flying and not self.copied

    def _digest(self, payload: Payload, digest: int) -> None:
        self.digest.add(payload.group, payload.layer, payload.first, digest)
