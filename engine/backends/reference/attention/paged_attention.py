"""Computes paged attention with PyTorch operators: it gathers blocks, then calls `scaled_dot_product_attention`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.backends.reference.attention.head_attention import HeadAttentionStep
from engine.backends.reference.attention.kv_rows import KVRows, rows_of
from engine.backends.reference.attention.latent_attention import LatentAttentionStep
from engine.model.attention import AttentionStep
from engine.model.batch import Batch
from engine.model.config import HeadAttention, LatentAttention
from engine.model.kv_layout import AnyAttention, groups_of_layers
from engine.model.layers.linear import LatentProducts


class ReferenceAttention:
    def __init__(
        self, layers: Sequence[Tensor], attentions: Sequence[AnyAttention], dtype: torch.dtype | None = None
    ) -> None:
        """Takes the pool's layers, as `engine/model/kv_layout.py` has them.

        `dtype` is what the model computes in; None: the layers' own format.
        """
        self._layers = [
            rows_of(layer, attention, dtype or layer.dtype) for layer, attention in zip(layers, attentions, strict=True)
        ]
        self._attentions = attentions
        self._groups = groups_of_layers(attentions)

    def begin(self, batch: Batch) -> "ReferenceAttentionStep":
        return ReferenceAttentionStep(self._layers, self._attentions, self._groups, batch)


class ReferenceAttentionStep(AttentionStep):
    def __init__(
        self, layers: Sequence[KVRows], attentions: Sequence[AnyAttention], groups: Sequence[int], batch: Batch
    ) -> None:
        self._layers = layers
        self._attentions = attentions
        self._groups = groups
        firsts = [groups.index(group) for group in range(len(batch.groups))]
        self.steps = [
            HeadAttentionStep(layers[first], batch, group, attention.window)
            if isinstance(attention := attentions[first], HeadAttention)
            else LatentAttentionStep(layers[first], batch, group)
            for group, first in enumerate(firsts)
        ]

    def store(self, layer: int, keys_values: Tensor) -> None:
        self.steps[self._groups[layer]].store(self._layers[layer], keys_values)

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        step, attention = self.steps[self._groups[layer]], self._attentions[layer]
        if isinstance(step, LatentAttentionStep):
            assert isinstance(attention, LatentAttention)
            return step.attend(self._layers[layer], queries, attention)
        assert isinstance(attention, HeadAttention)
        return step.attend(self._layers[layer], queries, attention, sinks)

    def attend_latent(self, layer: int, queries: Tensor, products: LatentProducts) -> Tensor:
        step, attention = self.steps[self._groups[layer]], self._attentions[layer]
        assert isinstance(step, LatentAttentionStep) and isinstance(attention, LatentAttention)
        return step.attend_latent(self._layers[layer], queries, attention, products)
