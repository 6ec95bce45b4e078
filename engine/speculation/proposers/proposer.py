"""The interface of proposers at planning time, and the proposer that hands on what the executor's has drafted."""

from typing import Protocol

from contracts.messages.job import Prompt
from engine.plan import NO_PROPOSAL, Proposal
from engine.speculation.proposers.suffixes import Suffixes


class DraftedSequence(Protocol):
    """What a proposer reads of a scheduler's sequence, and the two fields that it keeps there."""

    prompt: Prompt
    tokens: list[int]  # all that are known, the prompt first
    prompt_tokens: int
    plan_length: int  # tokens at which nothing more is planned for the sequence
    suffixes: Suffixes | None  # index of its text; None: there is none yet
    proposed: Proposal  # by the executor's proposer, for the next step


class Proposer(Protocol):
    """Drafts tokens at planning time; a wrong draft token costs time and nothing else."""

    in_engine: bool  # the executor drafts, and each step has to ask for the next step's draft tokens

    def propose(self, sequence: DraftedSequence, most: int) -> Proposal:
        """Returns at most `most` draft tokens to follow `sequence.tokens`; none where nothing is likely."""
        ...

    def ended(self, sequence: DraftedSequence) -> None: ...


class EngineProposer:
    """Hands on what the executor's proposer has drafted behind the sequence's last step: `StepResult.proposed`."""

    in_engine = True

    def propose(self, sequence: DraftedSequence, most: int) -> Proposal:
        """Hands the draft tokens on once: behind other tokens they mean nothing."""
        proposed, sequence.proposed = sequence.proposed, NO_PROPOSAL
        return proposed.first(most)

    def ended(self, sequence: DraftedSequence) -> None:
        """Keeps nothing."""
