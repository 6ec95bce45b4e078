"""Says what every proposer offers that runs in the executor, behind the sampler: models and heads that guess tokens."""

from typing import Protocol

from torch import Tensor

from engine.model.attention import AttentionStep
from engine.model.batch import Batch
from engine.model.model import Stored
from engine.plan import Proposal, StepPlan, StepResult


class ModelProposer(Protocol):
    """Guesses what follows the tokens that a step gave. Guesses cost time, and change nothing."""

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, Proposal]:
        """Returns guesses by the index of a work that asks for some (`Work.propose`): none, or up to as many.

        It is called for every step, in order, once it is known which tokens have come. `hidden` `[rows, hidden]` are
        the normed states of the step's rows of logits, of each sampled work one, and one for each guess that it had.
        """
        ...


class KVProposer(ModelProposer, Protocol):
    """Guesses by KV of its own of all texts, behind that of the model's layers, which each step has to store."""

    def reads(self, plan: StepPlan) -> bool:
        """Tells whether it stores any of a step's; if not, it is told by `skip`, and not by `follow`."""
        ...

    def skip(self, batch: Batch) -> None:
        """Clears the blocks that a step enters of which nothing is stored."""
        ...

    def follow(self, plan: StepPlan, batch: Batch, states: Tensor, step: AttentionStep, stored: Stored) -> None:
        """Stores it for a step's tokens, whose normed states are `states` `[tokens, hidden]`, once the model's is.

        `stored` is called with the number of each layer whose KV is.
        """
        ...
