"""The layers of the transformer on a step's tokens, one operator after the other.

In the last layer only the rows that are sampled from go on once all KV is stored: nobody reads what the others give.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from engine.model.attention import AttentionStep
from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.elementwise import Elementwise
from engine.model.layer import Layer

Stored = Callable[[int], None]
"""Called with a layer's index when that layer's KV of the step is stored."""


class Layers(Protocol):
    """What every implementation offers."""

    def forward(self, hidden: Tensor, batch: Batch, step: AttentionStep, stored: Stored) -> Tensor:
        """From embeddings `[tokens, hidden]`, which are the callee's to change, to the normed states of
        `batch.logit_rows`, `[rows, hidden]`."""
        ...


Arrange = Callable[[ModelConfig, Sequence[Layer], Tensor], Layers]
"""Makes them of a model's config, its layers' weights, and the weight of the norm behind them."""


class OperatorLayers:
    """Matrix products by the linear layers; what is between them by PyTorch's operators, or those that stand in."""

    def __init__(self, config: ModelConfig, layers: Sequence[Layer], norm: Tensor, between: Elementwise) -> None:
        self._config = config
        self._layers = layers
        self._norm = norm
        self._between = between

    def forward(self, hidden: Tensor, batch: Batch, step: AttentionStep, stored: Stored) -> Tensor:
        """See `Layers`."""
        config, between = self._config, self._between
        angles = between.angles(batch.positions)
        change: Tensor | None = None
        for index, layer in enumerate(self._layers):
            hidden, normed = between.add_norm(hidden, change, layer.attention_norm)
            heads = layer.query_key_value(normed).view(len(normed), -1, config.head_dim)
            norm = layer.query_key_norm
            queries = between.rotate_and_store(heads, angles, norm, step, index, query_heads=config.heads)
            stored(index)
            last = index == len(self._layers) - 1
            if last and not len(batch.logit_rows):
                return hidden[:0]
            attended = step.attend(index, queries).flatten(1)
            if last and len(batch.logit_rows) < len(hidden):  # else it is every row, in order
                hidden, attended = hidden[batch.logit_rows], attended[batch.logit_rows]
            change = layer.attention_output(attended)
            hidden, normed = between.add_norm(hidden, change, layer.mlp_norm)
            change = layer.down(between.gate(layer.gate_up(normed)))
        return between.add_norm(hidden, change, self._norm)[1]
