"""Stands in the place of attention in a model of transformers: stores keys and values in the KV pool, attends there.

transformers calls attention by a name in its registry, with the module that asks. What serves that module is an
attribute of it, so that models of one process know nothing of each other.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from engine.model.attention import AttentionStep
from engine.model.config import HeadAttention
from engine.model.model import Stored

PAGED_ATTENTION_NAME = "baton"
"""The name of our attention in transformers' registry."""


@dataclass
class CurrentStep:
    """Holds the step that a model is computing; None between two steps."""

    step: AttentionStep | None = None
    stored: Stored | None = None


class PagedAttention:
    """Attends for one attention module of a model."""

    def __init__(
        self, layer: int, attention: HeadAttention, value_dim: int, sinks: Tensor | None, current: CurrentStep
    ) -> None:
        """Values of `value_dim` numbers, or the keys, are padded where they are the smaller ones."""
        self.layer = layer
        self.attention = attention
        self._value_dim = value_dim
        self._sinks = None if sinks is None else sinks.float().contiguous()
        self._current = current

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Takes `[1, heads, tokens, dim]` of queries, keys and values; returns `[1, tokens, heads, value_dim]`."""
        current, dim = self._current, self.attention.head_dim
        assert current.step is not None and current.stored is not None, "attention outside of a step"
        queries, keys, values = (_padded(side[0].transpose(0, 1), dim) for side in (query, key, value))
        current.step.store(self.layer, torch.cat((keys, values), 1))
        current.stored(self.layer)
        found = current.step.attend(self.layer, queries.contiguous(), self._sinks)
        return found[..., : self._value_dim].unsqueeze(0)


def _padded(vectors: Tensor, dim: int) -> Tensor:
    """Fills the last axis up with zeros, which change no score and give no value."""
    lacking = dim - vectors.shape[-1]
    return functional.pad(vectors, (0, lacking)) if lacking else vectors


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Is what transformers calls; what a module asks for beside these, the probe has looked at."""
    return module.paged_attention(query, key, value), None


AttentionInterface.register(PAGED_ATTENTION_NAME, _attend)
