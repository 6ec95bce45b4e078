"""Finds the event that a step must wait for before it touches blocks in which KV has landed.

Landings of many handoffs follow each other on one stream. A step that waited for the newest landing would also wait for
sequences that do not run yet, so it waits only for landings in its own blocks, and only once for each.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from engine.plan import Work

Event = TypeVar("Event")


class LandingOrder(Generic[Event]):
    """Remembers the newest landing in each block until a step or a move has waited for it.

    One thread records landings, another queries: both only insert or remove whole dictionary entries.
    """

    def __init__(self, block_tokens: int, groups: int) -> None:
        self._block_tokens = block_tokens
        # Of each KV group, by block: the landing's number and its event.
        self._landed: list[dict[int, tuple[int, Event]]] = [{} for _ in range(groups)]
        self._count = 0
        self._ends: dict[int, int] = {}  # by sequence of the previous step, the position after its last token

    def landed(self, group: int, blocks: Iterable[int], event: Event) -> None:
        """Records an `event` behind the newest landing in these blocks."""
        self._count += 1
        entry = (self._count, event)
        for block in blocks:
            self._landed[group][block] = entry

    def of_step(self, works: Sequence[Work]) -> Event | None:
        """Returns the event after all landings in blocks of these works that no step has waited for yet, or None.

        If a sequence continues its work of the previous step, only the blocks that it writes now have to be checked:
        nothing lands in blocks of a running sequence.
        """
        if not self._count:
            return None  # common case on prefill workers
        known, self._ends = self._ends, {work.sequence: work.start + len(work.token_ids) for work in works}
        if not any(self._landed):
            return None
        firsts = [work.start // self._block_tokens if known.get(work.sequence) == work.start else 0 for work in works]
        return self.of_blocks([self._touched(group, works, firsts) for group in range(len(self._landed))])

    def of_blocks(self, blocks: Sequence[Iterable[int]]) -> Event | None:
        """Returns the event after all landings in these blocks of each group without a waiter so far, or None.

        Nothing lands in null blocks.
        """
        found = [
            entry
            for landed, touched in zip(self._landed, blocks, strict=True)
            for block in touched
            if (entry := landed.pop(block, None)) is not None
        ]
        return max(found, key=lambda entry: entry[0])[1] if found else None

    def of_any(self) -> Event | None:
        return self.of_blocks([list(landed) for landed in self._landed])

    def _touched(self, group: int, works: Sequence[Work], firsts: Sequence[int]) -> list[int]:
        if not self._landed[group]:
            return []
        return [block for work, first in zip(works, firsts, strict=True) for block in work.blocks[group][first:]]
