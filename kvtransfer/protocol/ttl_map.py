"""A map with two bounds: entries expire after a time, and the oldest are dropped when there are too many."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
MAX_ENTRIES = 65536


class TTLMap(Generic[Key, Value]):
    """Keys with values, each kept for `seconds` after its last `put`."""

    def __init__(self, seconds: float, max_entries: int = MAX_ENTRIES) -> None:
        self._seconds = seconds
        self._max_entries = max_entries
        self._entries: OrderedDict[Key, tuple[Value, float]] = OrderedDict()  # oldest first

    def put(self, key: Key, value: Value, now: float) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (value, now + self._seconds)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def get(self, key: Key, now: float) -> Value | None:
        entry = self._entries.get(key)
        return entry[0] if entry is not None and entry[1] > now else None

    def forget_old(self, now: float) -> None:
        while self._entries:
            key = next(iter(self._entries))
            if self._entries[key][1] > now:
                return
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
