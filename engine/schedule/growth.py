"""Gives running sequences blocks for their next tokens, and preempts sequences if blocks are short."""

from engine.blocks.manager import BlockManager
from engine.schedule.lifecycle import Lifecycle
from engine.schedule.sequence import Sequence, SequenceState


class Growth:
    """Grows the block tables of running sequences."""

    def __init__(self, blocks: BlockManager, lifecycle: Lifecycle) -> None:
        self._blocks = blocks
        self._lifecycle = lifecycle
        self._running = lifecycle.running

    def grow(self, in_flight: bool) -> bool:
        """Gives each running sequence a block for its next token, oldest first; preempts if needed.

        Prompts have their blocks already, up to the end of their windows. Returns False if blocks are short while a
        step is `in_flight`, which must be collected before a sequence can be preempted.
        """
        if self._blocks.has_windows:
            for sequence in self._running:
                self._lifecycle.advance(sequence)
        short = [each for each in self._running if each.length > each.capacity or each.forked]
        for sequence in short:
            length = sequence.length
            if length >= sequence.plan_length:
                continue
            if sequence.planned < sequence.admitted_length:  # a prompt: up to the end of its windows
                length = min(length, max(sequence.planned + 1, sequence.capacity))
                if length <= sequence.capacity and not sequence.forked:
                    continue
            position = sequence.planned if sequence.forked else None
            while sequence.state is SequenceState.RUNNING and not self._blocks.grow(sequence.blocks, length, position):
                if in_flight:
                    return False
                victim = self._victim()
                if victim is None:
                    break  # landing and parked sequences, and I/O, will free blocks
                self._lifecycle.preempt(victim)
            else:
                if sequence.blocks:
                    sequence.capacity = self._blocks.capacity(sequence.blocks)
                    sequence.forked = False
        return True

    def _victim(self) -> Sequence | None:
        """Returns the sequence to preempt: the latest arrival of the lowest priority, but never the oldest sequence.

        So at least one sequence always makes progress.
        """
        candidates = [sequence for sequence in self._running if not sequence.hand_off]
        return max(candidates[1:], key=_gives_way, default=None)


def _gives_way(sequence: Sequence) -> tuple[int, int]:
    """Sort key: the greatest is preempted first."""
    return sequence.prompt.priority, sequence.id
