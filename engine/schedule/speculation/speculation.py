"""Speculates: has what follows a sequence's tokens guessed, and judges what became of the guesses.

A step verifies guesses beside the next token (`engine/verification.py`); the tokens are those that would come without
any (after Leviathan et al. and Chen et al., 2023, but with a draw that the guesses have no part in). So how many are
made, and by whom, is a question of time alone.
"""

from collections.abc import Sequence as Tokens

from engine.blocks.manager import BlockManager
from engine.plan import Work
from engine.schedule.sequence import Sequence, SequenceState
from engine.schedule.speculation.proposing import Proposer


class Speculation:
    """Plans guesses for the sequences of one scheduler."""

    def __init__(self, blocks: BlockManager, proposer: Proposer, most: int) -> None:
        """Has `proposer` guess up to `most` tokens for each step of a sequence, whose KV goes to blocks of `blocks`."""
        self._blocks = blocks
        self._proposer = proposer
        self._most = most

    def serves(self, sequence: Sequence) -> bool:
        """Tells whether a sequence's tokens are to be known before its next step is planned, for guesses to follow."""
        return self._most > 0 and not sequence.hand_off

    def wanted(self, sequence: Sequence) -> int:
        """Returns how many guesses the engine is to make behind the tokens that the step being planned gives."""
        return self._most if self.serves(sequence) else 0

    def guess(self, sequence: Sequence, batch: int, room: int) -> tuple[int, ...]:
        """Returns guesses to be verified by a sequence's next step, which has `batch` sequences and `room` for more.

        They go no further than the sequence can, and their KV to blocks that are there, or that nobody is about to
        need: a guess preempts nobody. As long as the output may not end, no guess is where it might.
        """
        if sequence.pending or sequence.branches:
            return ()
        most = min(self._most, room, sequence.plan_length - sequence.length - 1)
        lacking = sequence.limits.min_tokens - sequence.emitted
        if lacking > 0:
            most = min(most, lacking - 1)
        if most <= 0:
            return ()
        proposed = self._proposer.propose(sequence, most)
        return tuple(proposed[: self._fitting(sequence, len(proposed), batch)])

    def judge(self, sequence: Sequence, work: Work, tokens: Tokens[int], proposed: list[int] | None) -> None:
        """Takes what came of a step: `tokens` for its guesses, and the engine's guesses for the next step.

        What the step computed beyond the sequence's tokens is forgotten: the next steps write over it.
        """
        sequence.proposed = proposed or []
        if work.proposed:
            sequence.guessed = 0
            if sequence.state is SequenceState.RUNNING:
                sequence.planned = sequence.computed

    def _fitting(self, sequence: Sequence, count: int, batch: int) -> int:
        """Returns how many of `count` guesses have a place for their KV; takes blocks for them if there are plenty."""
        wanted = sequence.length + count
        if wanted > sequence.capacity:
            plenty = all(group.available > batch + count for group in self._blocks.groups)
            if plenty and self._blocks.grow(sequence.blocks, wanted):
                sequence.capacity = self._blocks.capacity(sequence.blocks)
        return min(count, sequence.capacity - sequence.length)
