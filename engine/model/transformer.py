"""The decoder-only transformer; its config holds all differences between architectures.

It depends on four things: an `AttentionStep` that stores and attends, linear layers from a factory, the operators
between them, and a callback for each layer whose KV is stored.
"""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.attention import Step, TakenStep
from engine.model.batch import Batch
from engine.model.config import ExpertsMLP, LatentAttention, ModelConfig, heads_of
from engine.model.elementwise import Angles, Elementwise
from engine.model.families.family import ModelNames
from engine.model.layers.dense import DenseWeights
from engine.model.layers.experts import ExpertsWeights
from engine.model.layers.latent import LatentWeights
from engine.model.layers.layer import HeadWeights, LayerWeights, load_layer
from engine.model.layers.linear import AnyLinear, Linear
from engine.model.layers.linear_factory import LinearFactory
from engine.model.model import Stored
from infra.process.status import Progress


class Layers(Protocol[TakenStep]):
    """Runs all layers of the transformer on a step's tokens."""

    def forward(self, hidden: Tensor, batch: Batch, step: TakenStep, stored: Stored) -> Tensor:
        """Computes the normed states `[rows, hidden]` of `batch.logit_rows`.

        `hidden` `[tokens, hidden]`, the tokens' embeddings, may be overwritten.
        """
        ...


Arrange = Callable[[ModelConfig, Sequence[LayerWeights[AnyLinear]], Tensor | None], Layers[Step]]
"""Makes the layers from the config, their weights, and the final norm's weight `[hidden]`."""


class Transformer(Generic[Step]):
    def __init__(
        self,
        config: ModelConfig,
        names: ModelNames,
        make: LinearFactory[AnyLinear],
        arrange: Arrange[AnyLinear, Step],
        progress: Progress,
    ) -> None:
        """Loads all weights, called `names`.

        Raises `ModelError` where the checkpoint lacks one or has another shape.
        """
        self._config = config
        self._adapting = make.adapting
        self._group = make.group
        self._embedding = make.embedding(f"{names.embedding}.weight", config.vocab_size, config.hidden_size)
        layers = []
        for index in range(len(config.layers)):
            progress("loading weights", 100.0 * index / (len(config.layers) + 1))
            layers.append(load_layer(config, make, names.in_layer(index), index))
        norm = make.norm(names.norm, config.hidden_size, config.norm_offset)
        self._head: Linear | None = None
        if not names.head:
            pass
        elif config.tied_head:
            self._head = make.head_of(self._embedding.weight)
        else:
            held = [make.group.shard.part(config.vocab_size)]
            self._head = make.linear([names.head], [config.vocab_size], config.hidden_size, is_head=True, held=held)
        self._layers = arrange(config, layers, norm)
        self._held = [
            self._embedding.weight,
            norm,
            *(self._head.held() if self._head is not None else ()),
            *(each for layer in layers for each in layer.held()),
        ]
        progress("loading weights", 100.0)

    def weights_bytes(self) -> int:
        """Returns the bytes of all weights in memory; a tied head counts only if it was packed into a copy."""
        return sum({id(tensor): tensor.numel() * tensor.element_size() for tensor in self._held}.values())

    def forward(self, batch: Batch, step: Step, stored: Stored) -> Tensor:
        """Computes the normed states `[rows, hidden]` of `batch.logit_rows`, and stores the KV of all tokens."""
        if self._adapting is not None:
            self._adapting.begin(batch.adapters)
        return self._layers.forward(self.embedded(batch.token_ids), batch, step, stored)

    def embedded(self, token_ids: Tensor) -> Tensor:
        """Returns the embeddings `[tokens, hidden]` of `token_ids` `[tokens]`, as the first layer takes them."""
        hidden = self._embedding(token_ids)
        scale = self._config.embedding_scale
        if scale != 1.0:
            hidden *= torch.tensor(scale, dtype=hidden.dtype)  # is rounded first, as transformers rounds it
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits `[rows, vocab]` of hidden states from `forward`."""
        config, group = self._config, self._group
        assert self._head is not None, "logits of a model without a head"
        logits = group.collective.all_gather(self._head(hidden), group.shard.lengths(config.vocab_size))
        if config.logits_scale != 1.0:
            logits *= config.logits_scale
        if config.logits_softcap:
            logits.div_(config.logits_softcap).tanh_().mul_(config.logits_softcap)
        return logits


class OperatorLayers(Generic[Step]):
    """Runs a layer's operators in order: linear layers, and an `Elementwise` between them.

    In the last layer only `batch.logit_rows` are computed once all KV is stored.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[LayerWeights[Linear]],
        norm: Tensor | None,
        between: Elementwise[Step],
        first: int = 0,
    ) -> None:
        """`first` is the pool's layer of the first layer's KV; without a `norm` states are not normed."""
        self._ropes = config.ropes
        self._layers = layers
        self._norm = norm
        self._between = between
        self._first = first

    def forward(self, hidden: Tensor, batch: Batch, step: Step, stored: Stored) -> Tensor:
        between = self._between
        angles = {rope: between.angles(batch.positions, rope) for rope in self._ropes}
        change: Tensor | None = None
        for index, layer in enumerate(self._layers, self._first):
            rope = layer.config.attention.rope
            first = _first_of(layer.attention)
            hidden, product = between.norm_and_multiply(hidden, change, layer.attention_norm, first)
            turns = None if rope is None else angles[rope]
            queries = self._store(layer, index, product, turns, step)
            stored(index)
            last = layer is self._layers[-1]
            if last and not len(batch.logit_rows):
                return hidden[:0]
            attended = self._attend(layer, index, queries, turns, step).flatten(1)
            if last and batch.logit_rows.shape[0] < hidden.shape[0]:  # else it is every row, in order
                hidden, attended = hidden[batch.logit_rows], attended[batch.logit_rows]
            change = self._post(layer.attention.output(attended), layer.attention_post_norm)
            hidden, change = self._mlp(layer, hidden, change)
            change = self._post(change, layer.mlp_post_norm)
        return between.add_norm(hidden, change, self._norm)[1]

    def _mlp(self, layer: LayerWeights[Linear], hidden: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        mlp, weights, between = layer.config.mlp, layer.mlp, self._between
        if isinstance(weights, DenseWeights):
            hidden, gate_up = between.norm_and_multiply(hidden, change, layer.mlp_norm, weights.gate_up)
            return hidden, between.gate_and_multiply(gate_up, mlp.activation, weights.down)
        assert isinstance(mlp, ExpertsMLP)
        hidden, normed = between.add_norm(hidden, change, layer.mlp_norm)
        return hidden, self._experts(weights, mlp, normed)

    def _experts(self, weights: ExpertsWeights[Linear], mlp: ExpertsMLP, x: Tensor) -> Tensor:
        logits = self._between.router_logits(x, weights.router, weights.router_bias)
        change = weights.experts(x, *self._between.route(logits, mlp, weights.correction))
        if weights.shared is None:
            return change
        gate_up = weights.shared.gate_up(x)
        shared = self._between.gate_and_multiply(gate_up, mlp.activation, weights.shared.down)
        if weights.shared_gate is not None:
            shared = shared * torch.sigmoid(functional.linear(x.float(), weights.shared_gate)).to(x.dtype)
        return change + shared

    def _store(
        self, layer: LayerWeights[Linear], index: int, product: Tensor, angles: Angles | None, step: Step
    ) -> Tensor:
        """Stores a layer's KV from its first `product`. Returns its queries, or the input of latent queries."""
        weights, attention = layer.attention, layer.config.attention
        if isinstance(weights, LatentWeights):
            assert isinstance(attention, LatentAttention) and angles is not None
            norms = weights.query_norm, weights.norm
            return self._between.store_latents(product, angles, *norms, step, index, attention)
        attention = heads_of(layer.config)
        heads = product.view(product.shape[0], -1, attention.head_dim)
        return self._between.rotate_and_store(heads, angles, weights.query_key_norm, step, index, attention)

    def _attend(
        self, layer: LayerWeights[Linear], index: int, queries: Tensor, angles: Angles | None, step: Step
    ) -> Tensor:
        weights, attention = layer.attention, layer.config.attention
        if isinstance(weights, LatentWeights):
            assert isinstance(attention, LatentAttention) and angles is not None
            queries = queries if weights.query is None else weights.query(queries)
            queries = queries.unflatten(1, (attention.heads, -1))
            return step.attend_latent(index, self._between.rotate_queries(queries, angles, attention), weights.products)
        return step.attend(index, queries, weights.sinks)

    def _post(self, change: Tensor, norm: Tensor | None) -> Tensor:
        return change if norm is None else self._between.add_norm(change, None, norm)[1]


def _first_of(attention: HeadWeights[Linear] | LatentWeights[Linear]) -> Linear:
    return attention.down if isinstance(attention, LatentWeights) else attention.query_key_value
