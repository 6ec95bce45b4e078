"""The interfaces of proposers that run in the executor after the sampler: draft models and heads."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from engine.model.attention import AttentionStep
from engine.model.batch import Batch
from engine.model.model import Stored
from engine.plan import Proposal, StepPlan, StepResult
from engine.speculation.proposers.pending_drafts import DraftedTokens


class ModelProposer(Protocol):
    """Drafts the tokens that follow a step's tokens. A wrong draft token only costs time."""

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> Mapping[int, Proposal | DraftedTokens]:
        """Returns draft tokens by index of the works that want some, at most `Work.propose` each.

        Drafted tokens are still computed on the device, for which the host does not wait.

        Called for every step, in order, once the step's tokens are known. `hidden` `[rows, hidden]` are the normed
        states of the step's rows of logits: one row for each sampled work, and one for each of its draft tokens.
        """
        ...


class KVProposer(ModelProposer, Protocol):
    """A proposer with its own KV after that of the model's layers, which every step has to store."""

    def reads(self, plan: StepPlan) -> bool:
        """Returns whether the proposer needs this step's states. If True `note` is called, else `skip`."""
        ...

    def stores(self, plan: StepPlan) -> bool:
        """Returns whether the proposer computes its own KV within this step, by `store`."""
        ...

    def skip(self, plan: StepPlan) -> None:
        """Clears the new blocks of a step whose KV is not stored."""
        ...

    def store(self, plan: StepPlan, batch: Batch, states: Tensor, step: AttentionStep, stored: Stored) -> None:
        """Stores the KV of a step's tokens, with normed states `[tokens, hidden]`, after the model's own KV.

        `stored` is called with the index of each layer whose KV is stored.
        """
        ...

    def note(self, plan: StepPlan, states: Tensor) -> None:
        """Keeps the normed `states` `[tokens, hidden]` of a step's tokens as far as later steps read them."""
        ...
