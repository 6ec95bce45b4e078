"""Plans draft tokens for sequences, and keeps account of how many of them are accepted.

A step verifies draft tokens beside the next token (`engine/speculation/verify`), and the output is the one of a step
without any (after Leviathan et al. and Chen et al., 2023, but with draws that the draft tokens have no part in). So
how many are drafted, and by which proposer, is a question of time alone.
"""

from collections.abc import Sequence as Indices

from engine.blocks.manager import BlockManager
from engine.plan import NO_PROPOSAL, Proposal, Work
from engine.schedule.sequence import Sequence, SequenceState
from engine.speculation.control.controller import DraftController, PlannedDecodes
from engine.speculation.proposers.proposer import Proposer
from engine.speculation.verify.verification import judged_drafts
from infra.redis.records import SpeculationCounts

LOOK_STEPS = 8
"""Steps between two looks at whether guesses pay, while nothing is tried, for each takes microseconds. Where they do
not, texts are looked at in one step of so many."""
AWAKE_STEPS = 4
"""Steps after a guess that came true, in which its sequence, which knows that it did, may look again."""


class Speculation:
    """Plans guesses for the sequences of one scheduler, and counts what becomes of them."""

    def __init__(
        self,
        blocks: BlockManager,
        proposer: Proposer,
        most: int,
        controller: DraftController | None = None,
        *,
        stores: bool = False,
    ) -> None:
        """Has `proposer` guess up to `most` tokens for each step of a sequence, whose KV goes to blocks of `blocks`.

        `controller` says how many of them are worth a step's seconds; None: all are verified. `stores`: while the
        engine guesses, it already stores KV of its own for the guesses in these blocks.
        """
        self._blocks = blocks
        self._proposer = proposer
        self.in_engine = proposer.in_engine
        self._most = most
        self._controller = controller
        self._stores = stores
        self._sequences = 0
        self._drafting = 0  # sequences with draft tokens in the step that is planned
        self.step = 0  # steps in which anybody decoded
        self._idle = False  # guesses have not paid in such a step as is planned: looks into texts are few
        self._look_at = self._looked_at = self._size = 0  # steps of looks at costs, and the batch's size at the last
        self._awake = 0  # the last step in which there may be looks though they are few
        self.decoding: PlannedDecodes | None = None  # of the step that is planned
        self._works = self._guessed = self._proposed = 0
        self._seconds = 0.0
        self._accepted = [0] * most  # by depth: the first of a work's, the next one behind it, and so on

    def begin(self, sequences: int, context: int) -> bool:
        """Begins a step in which so many sequences decode, of `context` tokens together; False: it verifies nothing."""
        self._sequences = sequences
        self._works += sequences
        self.step = step = self.step + 1
        self.decoding = None
        there = not self._idle  # what the engine was asked for
        if self._controller is not None and self._drafting:
            self._controller.verifies(self._drafting)
            self._drafting = 0
        due = step >= self._look_at or (there and sequences.bit_length() != self._size)
        if self._controller is not None and due:
            self._look(self._controller, sequences, context)
        if not self._idle:
            return self._most > 0
        return there if self.in_engine else self._may_look(step)

    def _look(self, controller: DraftController, sequences: int, context: int) -> None:
        """Looks at whether guesses pay in the step that is planned."""
        self.decoding = controller.begin(sequences, context, self.step - self._looked_at)
        self._idle = not controller.pays
        self._size, self._looked_at = sequences.bit_length(), self.step
        self._look_at = self.step + (1 if controller.tries else LOOK_STEPS)

    def serves(self, sequence: Sequence) -> bool:
        """Tells whether a sequence's tokens are to be known before its next step is planned, for guesses to follow."""
        step = self.step + 1
        return not sequence.hand_off and self._may_look(step) and not self.rests(sequence, step)

    def rests(self, sequence: Sequence, step: int) -> bool:
        """Tells whether nobody looks for guesses of a sequence in a step, in which others may."""
        trust = sequence.trust
        return (trust.long_rest_until if self._idle else trust.rests_until) > step

    def _may_look(self, step: int) -> bool:
        """Tells whether there may be guesses in a step."""
        if not self._idle:
            return self._most > 0
        return not self.in_engine and (step % LOOK_STEPS == 0 or step <= self._awake)

    def wanted(self, sequence: Sequence, guesses: int) -> int:
        """Returns how many guesses the engine is to make behind the tokens that the step being planned gives.

        That step has `guesses` itself.
        """
        if not self.serves(sequence):
            return 0
        count = self._most
        if self._controller is not None:
            count = self._controller.count(sequence.trust, 0, count)
        if self._stores and not sequence.branches:
            self._reach(sequence, sequence.length + guesses + count, self._sequences)
        return count

    def guess(self, sequence: Sequence, batch: int, room: int) -> Proposal:
        """Returns guesses to be verified by a sequence's next step, which has `batch` sequences and `room` for more.

        They go no further than the sequence can, and their KV to blocks that are there, or that nobody is about to
        need: a guess preempts nobody. As long as the output may not end, no guess is where it might.
        """
        trust = sequence.trust
        if self._idle and not trust.long_rest_until and not self.in_engine:
            trust.long_rest_until = self.step + self._long_rest
            return NO_PROPOSAL
        length = sequence.length
        most = min(self._most, room, sequence.plan_length - length - 1)
        lacking = sequence.limits.min_tokens - (length - sequence.prompt_tokens)
        if lacking > 0:
            most = min(most, lacking - 1)
        if most <= 0 or sequence.pending or sequence.branches or sequence.hand_off:
            return NO_PROPOSAL
        proposal = self._proposer.propose(sequence, most)
        count = len(proposal.tokens)
        if not self.in_engine:  # elsewhere it was said how many are wanted
            if count and self._controller is not None:
                count = self._controller.count(trust, proposal.evidence, count)
            if not count:
                trust.fails(self.step, self._long_rest)
        if not count:
            return NO_PROPOSAL
        sequence.evidence = proposal.evidence
        self._drafting += 1
        return proposal.first(self._fitting(sequence, count, batch))

    def judge(self, sequence: Sequence, work: Work, accepted: Indices[int], proposed: Proposal | None) -> None:
        """Takes what came of a step: `tokens` for its guesses, and the engine's guesses for the next step.

        What the step computed beyond the sequence's tokens is forgotten: the next steps write over it.
        """
        sequence.proposed = proposed or NO_PROPOSAL
        if work.proposed:
            sequence.guessed = 0
            if sequence.state is SequenceState.RUNNING:
                sequence.planned = sequence.computed
            self._learn(sequence, work, accepted)

    def ended(self, sequence: Sequence) -> None:
        """Takes note that a sequence's answer is whole."""
        self._proposer.ended(sequence)

    def took(self, decoding: PlannedDecodes, seconds: float, proposing: float, tokens: int) -> None:
        """Takes note of what a step of decodes took, and of that who proposed, for so many tokens."""
        self._seconds -= proposing
        if self._controller is not None:
            self._controller.took(decoding, seconds, tokens)

    @property
    def _long_rest(self) -> int:
        return 1 if self._controller is None else self._controller.long_rest

    def counts(self) -> SpeculationCounts:
        """Counts guesses since the start."""
        return SpeculationCounts(self._works, self._guessed, self._proposed, tuple(self._accepted), self._seconds)

    def _learn(self, sequence: Sequence, work: Work, accepted: Indices[int]) -> None:
        judged = judged_drafts(work, accepted)
        self._guessed += 1
        self._proposed += len(work.proposed)
        for depth in range(len(accepted)):
            self._accepted[depth] += 1
        if self._controller is not None:
            self._seconds += self._controller.learn(sequence.trust, sequence.evidence, len(work.proposed), judged)
        if accepted:
            sequence.trust.succeeds()
            self._awake = self.step + AWAKE_STEPS
        elif not self.in_engine:
            sequence.trust.fails(self.step, self._long_rest)

    def _fitting(self, sequence: Sequence, count: int, batch: int) -> int:
        """Returns how many of `count` guesses have a place for their KV; takes blocks for them if there are plenty."""
        self._reach(sequence, sequence.length + count, batch)
        return min(count, sequence.capacity - sequence.length)

    def _reach(self, sequence: Sequence, tokens: int, batch: int) -> None:
        """Takes blocks for so many tokens, if there are plenty beside what a step of `batch` sequences may take."""
        if tokens > sequence.capacity:
            plenty = all(group.available > batch + self._most for group in self._blocks.groups)
            if plenty and self._blocks.grow(sequence.blocks, tokens):
                sequence.capacity = self._blocks.capacity(sequence.blocks)
