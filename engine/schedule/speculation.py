"""Plans draft tokens for sequences, and counts how many are accepted.

A step verifies draft tokens beside the next token (`engine/speculation/verify`), without any effect on the output
(after Leviathan et al. and Chen et al., 2023, except that draws do not depend on draft tokens). The number of draft
tokens and the choice of proposer therefore affect only the speed.
"""

from collections.abc import Sequence as Indices

from engine.blocks.manager import BlockManager
from engine.plan import NO_PROPOSAL, Proposal, Work
from engine.schedule.sequence import Sequence, SequenceState
from engine.speculation.control.controller import DraftController, PlannedDecodes
from engine.speculation.proposers.proposer import Proposer
from engine.speculation.verify.verification import judged_drafts
from infra.redis.worker_load import SpeculationCounts

LOOK_STEPS = 8
"""Steps between two decisions of the controller, which take microseconds each. While draft tokens do not pay, texts
are searched only once in this many steps."""
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
        """`proposer` drafts up to `most` tokens per step for a sequence; their KV goes to blocks of `blocks`.

        `controller` chooses how many to verify; None: all. `stores`: the executor's proposer stores its own KV of draft
        tokens in these blocks while it drafts.
        """
        self._blocks = blocks
        self._proposer = proposer
        self.in_engine = proposer.in_engine
        self._most = most
        self._controller = controller
        self._stores = stores
        self._sequences = 0
        self._drafting = 0  # sequences with draft tokens in the step being planned
        self.step = 0  # number of steps with decodes
        self._idle = False  # drafting does not pay in the step being planned, so texts are seldom searched
        self._look_at = self._looked_at = self._size = (
            0  # next and last step of the controller's decision, and the batch size class at that time
        )
        self._awake = 0  # last step in which texts may be searched while `_idle`
        self.decoding: PlannedDecodes | None = None  # of the step being planned
        self._works = self._with_drafts = self._proposed = 0
        self._seconds = 0.0
        self._accepted = [0] * most  # by index of the draft token

    def begin(self, sequences: int, context: int) -> bool:
        """Begins a step in which `sequences` decode, with `context` tokens together; False: without draft tokens."""
        self._sequences = sequences
        self._works += sequences
        self.step = step = self.step + 1
        self.decoding = None
        asked = not self._idle  # the executor was asked for draft tokens in the previous step
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
        """Returns whether a sequence's newest token must be known before its next step, to draft after it."""
        step = self.step + 1
        return not sequence.hand_off and self._may_look(step) and not self.rests(sequence, step)

    def rests(self, sequence: Sequence, step: int) -> bool:
        trust = sequence.trust
        return (trust.long_rest_until if self._idle else trust.rests_until) > step

    def _may_look(self, step: int) -> bool:
        if not self._idle:
            return self._most > 0
        return not self.in_engine and (step % LOOK_STEPS == 0 or step <= self._awake)

    def wanted(self, sequence: Sequence, drafts: int) -> int:
        """Returns the number of tokens that the executor drafts after the step being planned.

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

        They stop where the sequence ends, and their KV goes to blocks that it has or that are plentiful: draft tokens
        never preempt a sequence. Until `min_tokens` is reached, no draft token may end the output.
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
        if not self.in_engine:  # the executor was given the number of draft tokens
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
        """Records the `accepted` draft tokens of a step, and the executor's draft tokens for the next step.

        KV beyond the sequence's tokens is dropped: the next steps overwrite it.
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
        """Records a step of decodes: its `seconds`, which include `proposing`, and its tokens."""
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
        """Returns how many of `count` draft tokens have blocks for their KV; allocates blocks if there are plenty."""
        self._reach(sequence, sequence.length + count, batch)
        return min(count, sequence.capacity - sequence.length)

    def _reach(self, sequence: Sequence, tokens: int, batch: int) -> None:
        if tokens > sequence.capacity:
            plenty = all(group.available > batch + self._most for group in self._blocks.groups)
            if plenty and self._blocks.grow(sequence.blocks, tokens):
                sequence.capacity = self._blocks.capacity(sequence.blocks)
