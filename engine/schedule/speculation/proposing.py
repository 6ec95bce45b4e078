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

    in_engine: bool  # a step has to be asked for the guesses of the next one

    def propose(self, sequence: Sequence, most: int) -> Proposal:
        """Returns guesses of the tokens behind `sequence.tokens`, at most `most`; none where nothing is likely."""
        ...


class EngineProposer:
    """Hands on what the engine guessed behind the tokens of the sequence's last step: see `StepResult.proposed`."""

    in_engine = True

    def propose(self, sequence: Sequence, most: int) -> Proposal:
        """See `Proposer`. They are handed on once: behind other tokens they say nothing."""
        proposed, sequence.proposed = sequence.proposed, []
        return Proposal(proposed[:most])
