"""Which workers have a block: an index over all `KeptBlocks` of a gateway, by the blocks' short keys. Pure.

So the workers with KV of a prompt are found without asking each of a thousand. Most blocks have one holder.
"""

from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class BlockHolders(Generic[Holder]):
    """The holders of each block."""

    def __init__(self) -> None:
        self.telling: set[Holder] = set()
        """Holders that report their blocks."""
        self._first: dict[int, Holder] = {}  # a holder of each key
        self._all: dict[int, set[Holder]] = {}  # all of them, of keys with several

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._first)

    def of(self, key: int) -> Collection[Holder]:
        """Returns the holders of a key, in no order."""
        if (several := self._all.get(key)) is not None:
            return several
        return (self._first[key],) if key in self._first else ()

    def add(self, holder: Holder, keys: Iterable[int]) -> None:
        """Adds a holder of these keys, which may be one already."""
        for key in keys:
            if (first := self._first.setdefault(key, holder)) is not holder:
                self._all.setdefault(key, {first}).add(holder)

    def drop(self, holder: Holder, keys: Iterable[int]) -> None:
        """Removes a holder of these keys, which may be none."""
        for key in keys:
            if (several := self._all.get(key)) is not None:
                several.discard(holder)
                self._first[key] = next(iter(several))
                if len(several) == 1:
                    del self._all[key]
            elif self._first.get(key) is holder:
                del self._first[key]
