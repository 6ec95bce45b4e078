"""Keys of the full blocks cached on this worker: all keys, the last changes in order, and each gateway's position.

Changes are numbered. A gateway whose position is among the last changes gets the following ones, merged per key; any
other gateway gets all keys, in pieces, and continues from there. Repeated changes are harmless, since the last one per
key counts, so a gateway that reports an earlier position is sent the changes from there. Changes that all gateways
have confirmed are forgotten. Pure: time is an argument.
"""

from collections import OrderedDict
from collections.abc import Iterable

from contracts.kv.block_hash import SHORT_KEY_BYTES
from contracts.messages.gateway import NOT_HEARD, KeyNews

MAX_KEYS = 1 << 16  # keys reported to gateways. Beyond this number, the oldest are reported as lost.
KEYS_IN_MESSAGE = 1 << 10  # a gateway takes so many in half a millisecond; `MAX_KEYS` are 64 messages
MAX_CHANGES = 1 << 14  # changes kept in order. A gateway that is further behind gets all keys.
HEARD_TIMEOUT_S = 1.0  # seconds after which sent changes should have been confirmed


class _Follower:
    """The key changes that one gateway was sent."""

    def __init__(self) -> None:
        self.at = NOT_HEARD  # number of the last change sent
        self.confirmed = NOT_HEARD  # the position that the gateway has last reported
        self.snapshot: list[KeyNews] = []  # unsent pieces of all keys, the next one last
        self.mark = NOT_HEARD  # a change that the gateway should confirm …
        self.marked_at = float("-inf")  # … counted from this time, s


class KeyLog:
    def __init__(self) -> None:
        # Oldest first. Finding a dict's oldest key takes time for each key that was deleted before it.
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._changes: list[tuple[bytes, bool]] = []  # the last changes: key, whether it is kept
        self.number = 0  # of the last change
        self._followers: dict[str, _Follower] = {}

    def change(self, kept: bytes, lost: bytes) -> None:
        """Takes joined short keys of newly cached blocks (`kept`) and of dropped blocks (`lost`)."""
        for key in _keys(lost):
            if key in self._keys:
                del self._keys[key]
                self._note(key, False)
        for key in _keys(kept):
            if key in self._keys:
                continue
            self._keys[key] = None
            self._note(key, True)
            if len(self._keys) > MAX_KEYS:
                oldest, _ = self._keys.popitem(last=False)
                self._note(oldest, False)
        if len(self._changes) > KEYS_IN_MESSAGE:
            self._forget_changes()

    def _forget_changes(self) -> None:
        """Forgets changes that all gateways have confirmed, if these fill a message, and the oldest of too many."""
        kept = len(self._changes)
        confirmed = min([each.confirmed for each in self._followers.values()], default=self.number)
        past = max(kept - (self.number - confirmed), kept - MAX_CHANGES if kept > 2 * MAX_CHANGES else 0)
        if past > KEYS_IN_MESSAGE:
            del self._changes[:past]

    def _note(self, key: bytes, kept: bool) -> None:
        self.number += 1
        self._changes.append((key, kept))

    def heard(self, gateway: str, upto: int, now: float) -> None:
        """Takes a gateway's confirmed position. If it is late, changes are sent again from there."""
        follower = self._followers.setdefault(gateway, _Follower())
        follower.confirmed = upto
        if follower.snapshot:
            return
        if upto >= follower.mark:
            follower.mark, follower.marked_at = follower.at, now
        elif now >= follower.marked_at + HEARD_TIMEOUT_S:
            follower.at = upto if upto <= self.number else NOT_HEARD
            follower.mark, follower.marked_at = self.number, now

    def forget(self, gateways: Iterable[str]) -> None:
        for gateway in gateways:
            self._followers.pop(gateway, None)

    def owed(self, gateway: str) -> KeyNews | None:
        """Returns a gateway's next news, the same until it is sent; None without news."""
        follower = self._followers.get(gateway)
        if follower is None:
            return None
        if not follower.snapshot and follower.at < self.number - len(self._changes):  # NOT_HEARD is below all
            follower.snapshot = self._snapshot()
        if follower.snapshot:
            return follower.snapshot[-1]
        return self._since(follower.at) if follower.at < self.number else None

    def sent(self, gateway: str, news: KeyNews, now: float) -> None:
        """Records that the news of `owed` was sent."""
        follower = self._followers[gateway]
        if follower.snapshot:
            follower.snapshot.pop()
            follower.mark, follower.marked_at = news.upto, now
            if follower.snapshot:
                return
        follower.at = news.upto

    def _since(self, at: int) -> KeyNews:
        first = at - (self.number - len(self._changes))
        part = dict(self._changes[first : first + KEYS_IN_MESSAGE])  # the last change of each key
        kept = b"".join([key for key, here in part.items() if here])
        lost = b"".join([key for key, here in part.items() if not here])
        return KeyNews(at, min(self.number, at + KEYS_IN_MESSAGE), kept, lost)

    def _snapshot(self) -> list[KeyNews]:
        """Returns all keys in pieces, the first one last."""
        keys, size = b"".join(self._keys), KEYS_IN_MESSAGE * SHORT_KEY_BYTES
        parts = [keys[at : at + size] for at in range(0, len(keys), size)] or [b""]
        pieces = [KeyNews(NOT_HEARD, self.number, part, b"", at, len(parts)) for at, part in enumerate(parts)]
        return pieces[::-1]


def _keys(joined: bytes) -> list[bytes]:
    return [joined[at : at + SHORT_KEY_BYTES] for at in range(0, len(joined), SHORT_KEY_BYTES)]
