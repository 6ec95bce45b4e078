"""Remembers the newest event of each block until another stream has waited for it.

Landings and moves of blocks are on two streams. A step that waited for the newest landing would also wait for sequences
that do not run yet, and a landing that waited for the newest moves would also wait for the steps launched before them.
So each waits only for events of the blocks that it touches, and only once for each.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Event = TypeVar("Event")


class BlockEvents(Generic[Event]):
    """The events of one stream, by KV group and block.

    One thread records, another takes: both only insert or remove whole dictionary entries.
    """

    def __init__(self, groups: int) -> None:
        self._newest: list[dict[int, tuple[int, Event]]] = [{} for _ in range(groups)]  # the event's number, and it
        self._count = 0

    def __bool__(self) -> bool:
        return any(self._newest)

    def blocks(self) -> list[list[int]]:
        """Returns each group's blocks with an event."""
        return [list(newest) for newest in self._newest]

    def record(self, group: int, blocks: Iterable[int], event: Event) -> None:
        """Records an `event` behind the newest access to these blocks."""
        self._count += 1
        entry = (self._count, event)
        for block in blocks:
            self._newest[group][block] = entry

    def take(self, blocks: Sequence[Iterable[int]]) -> Event | None:
        """Returns the event behind all recorded accesses to these blocks of each group, and forgets them; or None."""
        found = [
            entry
            for newest, touched in zip(self._newest, blocks, strict=True)
            for block in touched
            if (entry := newest.pop(block, None)) is not None
        ]
        return max(found, key=lambda entry: entry[0])[1] if found else None
