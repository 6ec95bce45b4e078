"""The interface of proposers at planning time, and the proposer that forwards the executor's draft tokens."""

from collections.abc import Sequence
from typing import Protocol

from contracts.messages.job import Prompt
from engine.plan import NO_PROPOSAL, Proposal
from engine.speculation.proposers.suffixes import Suffixes


class DraftedSequence(Protocol):
    """The fields of a scheduler's sequence that a proposer reads, and the two fields that it writes."""

    id: int
    prompt: Prompt
    prompt_tokens: int
    plan_length: int  # tokens at which planning for the sequence stops
    suffixes: Suffixes | None  # index of its text; None: not made yet
    proposed: Proposal  # by the executor's proposer, for the next step

    @property
    def tokens(self) -> Sequence[int]:
        """All known tokens, the prompt first."""


class Proposer(Protocol):
    """Drafts tokens at planning time. A wrong draft token only costs time."""

    in_engine: bool  # the executor drafts, and each step must ask for the next step's draft tokens

    def propose(self, sequence: DraftedSequence, max_drafts: int) -> Proposal:
        """Returns at most `max_drafts` draft tokens to follow `sequence.tokens`; empty if nothing is likely."""
        ...

    def ended(self, sequence: DraftedSequence) -> None: ...


class EngineProposer:
    """Forwards the draft tokens of the executor's proposer: `StepResult.proposed`."""

    in_engine = True

    def propose(self, sequence: DraftedSequence, max_drafts: int) -> Proposal:
        """Returns the draft tokens once: they are invalid after other tokens."""
        proposed, sequence.proposed = sequence.proposed, NO_PROPOSAL
        return proposed.first(max_drafts)

    def ended(self, sequence: DraftedSequence) -> None:
        """Does nothing."""
