"""Computes paged attention by PyTorch's operators: it gathers blocks, then calls `scaled_dot_product_attention`."""

from collections.abc import Sequence

from torch import Tensor

from engine.backends.reference.head_attention import HeadAttentionStep
from engine.model.attention import AttentionStep
from engine.model.batch import Batch
from engine.model.config import HeadAttention
from engine.model.kv_layout import groups_of_layers


class ReferenceAttention:
    """See `engine.model.attention.Attention`."""

    def __init__(self, layers: Sequence[Tensor], attentions: Sequence[HeadAttention]) -> None:
        """Takes the pool's layers, each `[blocks, vectors, block, width]`."""
        self._layers = [layer.unflatten(1, (-1, 2)) for layer in layers]  # [blocks, kv_heads, 2, block, head_dim]
        self._attentions = attentions
        self._groups = groups_of_layers(attentions)

    def begin(self, batch: Batch) -> "ReferenceAttentionStep":
        return ReferenceAttentionStep(self._layers, self._attentions, self._groups, batch)


class ReferenceAttentionStep(AttentionStep):
    """See `engine.model.attention.AttentionStep`."""

    def __init__(
        self, layers: Sequence[Tensor], attentions: Sequence[HeadAttention], groups: Sequence[int], batch: Batch
    ) -> None:
        self._layers = layers
        self._attentions = attentions
        self._groups = groups
        firsts = [groups.index(group) for group in range(len(batch.groups))]
        self.steps = [
            HeadAttentionStep(layers[first], batch, group, attentions[first].window)
            for group, first in enumerate(firsts)
        ]

    def store(self, layer: int, keys_values: Tensor) -> None:
        self.steps[self._groups[layer]].store(self._layers[layer], keys_values)

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        step = self.steps[self._groups[layer]]
        return step.attend(self._layers[layer], queries, self._attentions[layer], sinks)
