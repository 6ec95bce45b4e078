"""The interfaces of proposers that run in the executor, behind the sampler: draft models and heads."""

from typing import Protocol

from torch import Tensor

from engine.model.attention import AttentionStep
from engine.model.batch import Batch
from engine.model.model import Stored
from engine.plan import Proposal, StepPlan, StepResult


class ModelProposer(Protocol):
    """Drafts tokens behind those of a step. A wrong draft token costs time and nothing else."""

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, Proposal]:
        """Returns draft tokens by index of the works that ask for some, at most `Work.propose` each.

        It is called for every step, in order, once the step's tokens are known. `hidden` `[rows, hidden]` are the
        normed states of the step's rows of logits: one for each sampled work, and one for each of its draft tokens.
        """
        ...


class KVProposer(ModelProposer, Protocol):
    """A proposer with KV of its own behind that of the model's layers, which every step has to store."""

    def reads(self, plan: StepPlan) -> bool:
        """Tells whether it stores KV in this step: then `follow` is called, and else `skip`."""
        ...

    def skip(self, batch: Batch) -> None:
        """Clears the blocks that the step enters, as no KV is stored in them."""
        ...

    def follow(self, plan: StepPlan, batch: Batch, states: Tensor, step: AttentionStep, stored: Stored) -> None:
        """Stores the KV of a step's tokens, with normed states `[tokens, hidden]`, after the model's own KV.

        `stored` is called with the index of each layer whose KV is stored.
        """
        ...
