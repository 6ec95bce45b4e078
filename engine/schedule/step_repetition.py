"""A step of decodes that is carried out several times in a row before its result is applied.

It saves the planning of steps that differ only in one more token of every sequence.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Members

from engine.blocks.manager import BlockManager
from engine.schedule.sequence import Sequence


class StepRepetition:
    """How often the newest step may be repeated, and the blocks of the repetitions."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks

    def most(self, members: Members[Sequence], most: int) -> int:
        """Returns how many times in a row, from 1 to `most`, a step of these sequences may be carried out.

        Until a sequence ends or is handed off, or blocks for their further tokens are short.
        """
        if most == 1 or any([each.hand_off or each.branches for each in members]):
            return 1
        count = max(1, min(most, *[each.end_length - len(each.tokens) for each in members]))
        while count > 1 and not self._blocks.has_room(self.missing(members, count - 1)):
            count //= 2
        return count

    def missing(self, members: Iterable[Sequence], further: int) -> list[int]:
        """Returns how many blocks of each KV group sequences lack for `further` more tokens each."""
        return self._blocks.missing(
            [(each.blocks, each.planned + further) for each in members if each.planned + further > each.capacity]
        )

    def go_on(self, members: Iterable[Sequence], further: int) -> None:
        """Adds `further` planned tokens to each sequence, and blocks for their KV, as a step's repetitions do."""
        for sequence in members:
            sequence.planned += further
            if sequence.planned > sequence.capacity:
                self._blocks.grow(sequence.blocks, sequence.planned)
                sequence.capacity = self._blocks.capacity(sequence.blocks)
