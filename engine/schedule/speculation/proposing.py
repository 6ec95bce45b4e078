"""Says what every proposer offers: it guesses what follows a sequence's tokens."""

from typing import Protocol

from engine.schedule.sequence import Sequence


class Proposer(Protocol):
    """Guesses tokens at planning time; a wrong guess costs time and nothing else."""

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """Returns guesses of the tokens behind `sequence.tokens`, at most `most`; none where nothing is likely."""
        ...


class EngineProposer:
    """Hands on what the engine guessed behind the tokens of the sequence's last step: see `StepResult.proposed`."""

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """See `Proposer`."""
        return sequence.proposed[:most]
