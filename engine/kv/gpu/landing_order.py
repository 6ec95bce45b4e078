"""Finds the event that a step must wait for before it touches blocks in which KV has landed."""

from collections.abc import Iterable, Sequence
from typing import Generic

from engine.kv.gpu.block_events import BlockEvents, Event
from engine.plan import Work


class LandingOrder(Generic[Event]):
    """Remembers the newest landing in each block until a step or a move has waited for it."""

    def __init__(self, block_tokens: int, groups: int) -> None:
        self._block_tokens = block_tokens
        self._groups = groups
        self._landed: BlockEvents[Event] = BlockEvents(groups)
        self._any = False  # landing since the start
        self._ends: dict[int, int] = {}  # by sequence of the previous step, the position after its last token

    def landed(self, group: int, blocks: Iterable[int], event: Event) -> None:
        """Records an `event` behind the newest landing in these blocks."""
        self._any = True
        self._landed.record(group, blocks, event)

    def of_step(self, works: Sequence[Work]) -> Event | None:
        """Returns the event after all landings in blocks of these works that no step has waited for yet, or None.

        If a sequence continues its work of the previous step, only the blocks that it writes now have to be checked:
        nothing lands in blocks of a running sequence.
        """
        if not self._any:
            return None  # common case on prefill workers
        known, self._ends = self._ends, {work.sequence: work.start + len(work.token_ids) for work in works}
        if not self._landed:
            return None
        firsts = [work.start // self._block_tokens if known.get(work.sequence) == work.start else 0 for work in works]
        return self.of_blocks([self._touched(group, works, firsts) for group in range(self._groups)])

    def of_blocks(self, blocks: Sequence[Iterable[int]]) -> Event | None:
        """Returns the event after all landings in these blocks of each group without a waiter so far, or None.

        Nothing lands in null blocks.
        """
        return self._landed.take(blocks)

    def of_any(self) -> Event | None:
        return self._landed.take(self._landed.blocks())

    def _touched(self, group: int, works: Sequence[Work], firsts: Sequence[int]) -> list[int]:
        return [block for work, first in zip(works, firsts, strict=True) for block in work.blocks[group][first:]]
