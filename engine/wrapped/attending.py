"""Attention for transformers' models: stores keys and values in the KV pool, and attends over it.

transformers calls attention by a name in its registry, with the calling module. The `PagedAttention` of a module is one
of its attributes, so that several models in one process do not interfere.
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


@dataclass
class CurrentStep:
    """The step that a model is computing; None between two steps."""

    step: AttentionStep | None = None
    stored: Stored | None = None


class PagedAttention:
    """Attention of one module of a model."""

    def __init__(
        self,
        layer: int,
        attention: HeadAttention,
        value_dim: int,
        sinks: Tensor | None,
        current: CurrentStep,
        *,
        stores: bool,
    ) -> None:
        """Keys or values (of length `value_dim`) are padded to the longer of their lengths.

        If it does not store, it attends to what an earlier module has stored as `layer`.
        """
        self.layer = layer
        self._stores = stores
        self.attention = attention
        self._value_dim = value_dim
        self._sinks = None if sinks is None else sinks.float().contiguous()
        self._current = current

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Takes `[1, heads, tokens, dim]` of queries, keys and values; returns `[1, tokens, heads, value_dim]`."""
        current, dim = self._current, self.attention.head_dim
        assert current.step is not None and current.stored is not None, "attention outside of a step"
        queries, keys, values = (_padded(side[0].transpose(0, 1), dim) for side in (query, key, value))
        if self._stores:
            current.step.store(self.layer, torch.cat((keys, values), 1))
            current.stored(self.layer)
        found = current.step.attend(self.layer, queries.contiguous(), self._sinks)
        return found[..., : self._value_dim].unsqueeze(0)


def _padded(vectors: Tensor, dim: int) -> Tensor:
    lacking = dim - vectors.shape[-1]
    return functional.pad(vectors, (0, lacking)) if lacking else vectors


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return module.paged_attention(query, key, value), None


AttentionInterface.register(PAGED_ATTENTION_NAME, _attend)
