"""Exchanges some guesses of a proposer for what is going to come: each way through a tree comes true now and then."""

from collections.abc import Sequence

from torch import Tensor

from engine.plan import Proposal, StepPlan, StepResult
from engine.speculation.proposers.model_proposer import ModelProposer

WAYS = [(), (0,), (0, 1), (0, 1, 2), (3,), (3, 6), (0, 5)]
"""Draft tokens of the assumed tree (`proposers/choices.py`), each behind the one before it."""


class Prompting:
    """Has the guesses on one way come true, on another way each time."""

    def __init__(self, proposer: ModelProposer, texts: Sequence[list[int]]) -> None:
        """`texts`: what sequences are going to be; what goes on from none of them keeps its guesses."""
        self._proposer = proposer
        self._texts = texts
        self._turn = 0

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, Proposal]:
        found: dict[int, Proposal] = {}
        for index, guesses in self._proposer.propose(plan, result, hidden).items():
            assert isinstance(guesses, Proposal)
            known = plan.works[index].tokens
            assert known is not None
            text = [*known, *result.tokens[index]]
            whole = next((whole for whole in self._texts if whole[: len(text)] == text), text)
            told = dict(zip(WAYS[self._turn % len(WAYS)], whole[len(text) :], strict=False))
            self._turn += 1
            tokens = [told.get(guess, token) for guess, token in enumerate(guesses.tokens)]
            found[index] = Proposal(tokens, parents=guesses.parents)
        return found
