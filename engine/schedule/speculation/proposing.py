"""Says what every proposer offers: it guesses what follows a sequence's tokens."""

from typing import NamedTuple, Protocol

from engine.schedule.sequence import Sequence


class Proposal(NamedTuple):
    """Holds guesses in order, and what they rest on: how many tokens speak for the first; 0: nothing is said of it."""

    tokens: list[int]
    evidence: int = 0


NOTHING = Proposal([])


class Proposer(Protocol):
    """Guesses tokens at planning time; a wrong guess costs time and nothing else."""

    def propose(self, sequence: Sequence, most: int) -> Proposal:
        """Returns guesses of the tokens behind `sequence.tokens`, at most `most`; none where nothing is likely."""
        ...


class EngineProposer:
    """Hands on what the engine guessed behind the tokens of the sequence's last step: see `StepResult.proposed`."""

    def propose(self, sequence: Sequence, most: int) -> Proposal:
        """See `Proposer`."""
        return Proposal(sequence.proposed[:most])
