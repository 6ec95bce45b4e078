"""The head that predicts hidden states: an EAGLE head, or the multi-token prediction layer of a DeepSeek-like model.

EAGLE (Li et al. 2024, https://arxiv.org/abs/2401.15077, https://arxiv.org/abs/2406.16858) and multi-token prediction
(DeepSeek-V3, https://arxiv.org/abs/2412.19437) have the same structure. With e(t) the embedding of the token at
position t, and f(t) the model's last hidden state, normed, which the model's head turns into logits,

    x(t) = W [n1(e(t)) ; n2(f(t - 1))]        g(t) = layer(x(t); x(1) … x(t - 1))

The layer is a decoder layer with its own KV; g(t) predicts f(t), and the model's head turns it into logits. EAGLE has
neither n1 nor n2, and no norm before attention; DeepSeek's layer has both, and a norm between g and the head. Where f(t
- 1) is unknown, as at position 0, x(t) is 0, and so are its key and value, which hardly changes other positions.
"""

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.attention import Step
from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.layers.linear import Linear
from engine.model.model import Stored
from engine.model.transformer import Layers, Transformer


@dataclass(frozen=True)
class HeadNorms:
    """The weights, fp32 `[hidden]`, of the norms that DeepSeek's layer has in addition to a decoder layer's norms."""

    embedding: Tensor  # n1
    state: Tensor  # n2
    logits: Tensor  # before the model's head
    eps: float


@dataclass(frozen=True)
class EagleHead(Generic[Step]):
    """Predicts hidden states for one model."""

    config: ModelConfig  # of the head: a model of one layer
    model: Transformer[Step]  # its embedding and head are used
    joined: Linear  # W
    norms: HeadNorms | None
    layers: Layers[Step]  # one layer, whose KV follows that of the model's layers

    def forward(self, batch: Batch, before: Tensor, known: Tensor | None, step: Step, stored: Stored) -> Tensor:
        """Computes g `[rows, hidden]` of `batch.logit_rows`, and stores the KV of all tokens.

        `before` `[tokens, hidden]` are the states f(t - 1). Rows where `known` (bool `[tokens]`) is False are ignored;
        None: all are known.
        """
        embedded = self.model.embedded(batch.token_ids)
        if self.norms is not None:
            embedded = self._normed(embedded, self.norms.embedding, self.norms.eps)
            before = self._normed(before, self.norms.state, self.norms.eps)
        x = self.joined(torch.cat((embedded, before), dim=-1))
        if known is not None:
            x = x.masked_fill(~known[:, None], 0.0)
        return self.layers.forward(x, batch, step, stored)

    def logits(self, states: Tensor) -> Tensor:
        """Returns logits `[rows, vocab]` of predicted `states`."""
        if self.norms is not None:
            states = self._normed(states, self.norms.logits, self.norms.eps)
        return self.model.logits(states)

    def held(self) -> list[Tensor]:
        norms = self.norms
        return self.joined.held() + ([] if norms is None else [norms.embedding, norms.state, norms.logits])

    def _normed(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed: Tensor = functional.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)
        return normed
