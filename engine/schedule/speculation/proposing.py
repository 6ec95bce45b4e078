"""Says what every proposer offers: it guesses what follows a sequence's tokens."""

from typing import Protocol

from engine.plan import NOTHING, Proposal
from engine.schedule.sequence import Sequence


class Proposer(Protocol):
    """Guesses tokens at planning time; a wrong guess costs time and nothing else."""

    in_engine: bool  # a step has to be asked for the guesses of the next one

    def propose(self, sequence: Sequence, most: int) -> Proposal:
        """Returns guesses of the tokens behind `sequence.tokens`, at most `most`; none where nothing is likely."""
        ...

    def ended(self, sequence: Sequence) -> None:
        """Takes note that a sequence's answer is whole."""
        ...


class EngineProposer:
    """Hands on what the engine guessed behind the tokens of the sequence's last step: see `StepResult.proposed`."""

    in_engine = True

    def propose(self, sequence: Sequence, most: int) -> Proposal:
        """See `Proposer`. They are handed on once: behind other tokens they say nothing."""
        proposed, sequence.proposed = sequence.proposed, NOTHING
        return proposed.first(most)

    def ended(self, sequence: Sequence) -> None:
        """See `Proposer`."""
