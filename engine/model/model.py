"""The interface of a model for the executor: our transformer, or transformers' own code."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from engine.model.attention import TakenStep
from engine.model.batch import Batch

Stored = Callable[[int], None]
"""Called with a layer's index when that layer's KV of the step is stored."""


class Model(Protocol[TakenStep]):
    """Turns token ids into logits; KV goes to the attention step."""

    def weights_bytes(self) -> int: ...

    def forward(self, batch: Batch, step: TakenStep, stored: Stored) -> Tensor:
        """Returns the hidden states `[rows, hidden]` of `batch.logit_rows`, and stores the KV of all tokens."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits `[rows, vocab]` of hidden states from `forward`."""
        ...
