"""Which workers have a block: an index over all `KeptBlocks` of a gateway, by the blocks' short keys. Pure.

So the workers with KV of a prompt are found without asking each of a thousand. A block that was handed off has two
holders; of a block that begins many prompts, all workers are holders.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

Holder = TypeVar("Holder")

KEY_DICTS = 4096
"""Dicts that the keys are spread over: a dict of a million keys would block an event loop for 76 ms when it grows."""
MAX_HOLDERS_IN_TUPLE = 8
"""Most holders of a block that are kept in a tuple, in a quarter of a set's memory; more holders are a set."""


class BlockHolders(Generic[Holder]):
    """The holders of each block."""

    def __init__(self) -> None:
        self.telling: set[Holder] = set()
        """Holders that report their blocks."""
        self._divisions: defaultdict[int, dict[int, tuple[Holder, ...] | set[Holder]]] = defaultdict(dict)

    def __len__(self) -> int:
        """Number of keys."""
        return sum(map(len, self._divisions.values()))

    def of(self, key: int) -> Collection[Holder]:
        """Returns the holders of a key, in no order."""
        return self._divisions[key % KEY_DICTS].get(key, ())

    def add(self, holder: Holder, keys: Iterable[int]) -> None:
        """Adds `holder` to the holders of each of `keys`; keys that already name this holder stay as they are."""
        alone = (holder,)
        for key in keys:
            division = self._divisions[key % KEY_DICTS]
            held = division.setdefault(key, alone)
            if held is alone or holder in held:
                continue
            if isinstance(held, set):
                held.add(holder)
            else:
                division[key] = held + alone if len(held) < MAX_HOLDERS_IN_TUPLE else {*held, holder}

    def drop(self, holder: Holder, keys: Iterable[int]) -> None:
        """Removes `holder` from the holders of each of `keys`; keys that do not name this holder stay as they are."""
        for key in keys:
            division = self._divisions[key % KEY_DICTS]
            held = division.get(key, ())
            if holder not in held:
                continue
            if len(held) == 1:
                del division[key]
            elif isinstance(held, set):
                held.discard(holder)
            else:
                division[key] = tuple([each for each in held if each is not holder])
