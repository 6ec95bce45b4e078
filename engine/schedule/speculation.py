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
"""Steps between two decisions of the controller, each of which takes microseconds. Where draft tokens do not pay, texts
are searched in one step out of so many."""
AWAKE_STEPS = 4
"""Steps after an accepted draft token in which its sequence may search its text although drafting does not pay."""


class Speculation:
    """Plans draft tokens for the sequences of one scheduler, and counts how many are accepted."""

    def __init__(
        self,
        blocks: BlockManager,
        proposer: Proposer,
        most: int,
        controller: DraftController | None = None,
        *,
        stores: bool = False,
    ) -> None:
        """`proposer` drafts up to `most` tokens for each step of a sequence; their KV goes to blocks of `blocks`.

        `controller` says how many are worth verifying; None: all are. `stores`: the executor's proposer stores KV of
        its own for draft tokens in these blocks already while it drafts.
        """
        self._blocks = blocks
        self._proposer = proposer
        self.in_engine = proposer.in_engine
        self._most = most
        self._controller = controller
        self._stores = stores
        self._sequences = 0
        self._drafting = 0  # sequences with draft tokens in the step that is planned
        self.step = 0  # steps with decodes
        self._idle = False  # drafting does not pay in the step that is planned: looks into texts are few
        self._look_at = self._looked_at = self._size = (
            0  # next and last step of the controller's decision, and the batch's bits then
        )
        self._awake = 0  # the last step in which there may be looks while `_idle`
        self.decoding: PlannedDecodes | None = None  # of the step that is planned
        self._works = self._with_drafts = self._proposed = 0
        self._seconds = 0.0
        self._accepted = [0] * most  # by place in the text behind the work's own tokens

    def begin(self, sequences: int, context: int) -> bool:
        """Begins a step in which `sequences` decode, of `context` tokens together; False: it has no draft tokens."""
        self._sequences = sequences
        self._works += sequences
        self.step = step = self.step + 1
        self.decoding = None
        asked = not self._idle  # the executor was asked for draft tokens in the step before
        if self._controller is not None and self._drafting:
            self._controller.verifies(self._drafting)
            self._drafting = 0
        due = step >= self._look_at or (asked and sequences.bit_length() != self._size)
        if self._controller is not None and due:
            self._look(self._controller, sequences, context)
        if not self._idle:
            return self._most > 0
        return asked if self.in_engine else self._may_look(step)

    def _look(self, controller: DraftController, sequences: int, context: int) -> None:
        self.decoding = controller.begin(sequences, context, self.step - self._looked_at)
        self._idle = not controller.pays
        self._size, self._looked_at = sequences.bit_length(), self.step
        self._look_at = self.step + (1 if controller.tries else LOOK_STEPS)

    def serves(self, sequence: Sequence) -> bool:
        """Tells whether a sequence's newest token has to be known before its next step, for drafts to follow it."""
        step = self.step + 1
        return not sequence.hand_off and self._may_look(step) and not self.rests(sequence, step)

    def rests(self, sequence: Sequence, step: int) -> bool:
        """Tells whether no draft tokens are looked for in a sequence in this step."""
        trust = sequence.trust
        return (trust.long_rest_until if self._idle else trust.rests_until) > step

    def _may_look(self, step: int) -> bool:
        if not self._idle:
            return self._most > 0
        return not self.in_engine and (step % LOOK_STEPS == 0 or step <= self._awake)

    def wanted(self, sequence: Sequence, drafts: int) -> int:
        """Returns how many tokens the executor is to draft behind those of the step being planned.

        That step itself verifies `drafts`.
        """
        if not self.serves(sequence):
            return 0
        count = self._most
        if self._controller is not None:
            count = self._controller.count(sequence.trust, 0, count)
        if self._stores and not sequence.branches:
            self._reach(sequence, sequence.length + drafts + count, self._sequences)
        return count

    def draft(self, sequence: Sequence, batch: int, budget: int) -> Proposal:
        """Returns draft tokens for a sequence's next step, which has `batch` sequences and a `budget` of more tokens.

        They end where the sequence ends, and their KV goes to blocks that it has or that are plentiful: a draft token
        preempts no sequence. While `min_tokens` is not reached, no draft token stands where the output could end.
        """
        trust = sequence.trust
        if self._idle and not trust.long_rest_until and not self.in_engine:
            trust.long_rest_until = self.step + self._long_rest
            return NO_PROPOSAL
        length = sequence.length
        most = min(self._most, budget, sequence.plan_length - length - 1)
        lacking = sequence.limits.min_tokens - (length - sequence.prompt_tokens)
        if lacking > 0:
            most = min(most, lacking - 1)
        if most <= 0 or sequence.pending or sequence.branches or sequence.hand_off:
            return NO_PROPOSAL
        proposal = self._proposer.propose(sequence, most)
        count = len(proposal.tokens)
        if not self.in_engine:  # the executor was told how many are wanted
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
        """Takes the `accepted` draft tokens of a step, and the executor's draft tokens for the next one.

        KV beyond the sequence's tokens is dropped: the next steps write over it.
        """
        sequence.proposed = proposed or NO_PROPOSAL
        if work.proposed:
            sequence.drafted = 0
            if sequence.state is SequenceState.RUNNING:
                sequence.planned = sequence.computed
            self._learn(sequence, work, accepted)

    def ended(self, sequence: Sequence) -> None:
        self._proposer.ended(sequence)

    def took(self, decoding: PlannedDecodes, seconds: float, proposing: float, tokens: int) -> None:
        """Records a step of decodes: its `seconds`, those of `proposing` among them, and its tokens."""
        self._seconds -= proposing
        if self._controller is not None:
            self._controller.took(decoding, seconds, tokens)

    @property
    def _long_rest(self) -> int:
        return 1 if self._controller is None else self._controller.long_rest

    def counts(self) -> SpeculationCounts:
        return SpeculationCounts(self._works, self._with_drafts, self._proposed, tuple(self._accepted), self._seconds)

    def _learn(self, sequence: Sequence, work: Work, accepted: Indices[int]) -> None:
        judged = judged_drafts(work, accepted)
        self._with_drafts += 1
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
        """Returns how many of `count` draft tokens have blocks for their KV; takes blocks if there are plenty."""
        self._reach(sequence, sequence.length + count, batch)
        return min(count, sequence.capacity - sequence.length)

    def _reach(self, sequence: Sequence, tokens: int, batch: int) -> None:
        if tokens > sequence.capacity:
            plenty = all(group.available > batch + self._most for group in self._blocks.groups)
            if plenty and self._blocks.grow(sequence.blocks, tokens):
                sequence.capacity = self._blocks.capacity(sequence.blocks)
