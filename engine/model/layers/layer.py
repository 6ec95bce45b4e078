"""Loads the weights of one layer of the transformer."""

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from engine.model.config import DenseMLP, ExpertsMLP, HeadAttention, LatentAttention, LayerConfig, ModelConfig
from engine.model.families.family import LayerNames
from engine.model.layers.dense import DenseWeights, load_dense
from engine.model.layers.experts import ExpertsWeights, load_experts
from engine.model.layers.latent import LatentWeights, load_latent
from engine.model.layers.linear import AnyLinear
from engine.model.layers.linear_factory import LinearFactory
from engine.model.rope import halves_order
from engine.model.sharding import shard_layer
from engine.parallel.shard import scaled


@dataclass(frozen=True, slots=True)
class HeadWeights(Generic[AnyLinear]):
    """Weights of a `HeadAttention`. Query, key and value are one linear layer."""

    query_key_value: AnyLinear
    query_key_norm: Tensor | None  # fp32 [heads + kv_heads, head_dim], or None where heads are not normed
    output: AnyLinear
    sinks: Tensor | None  # fp32 [heads]

    def held(self) -> list[Tensor]:
        tensors = [tensor for tensor in (self.query_key_norm, self.sinks) if tensor is not None]
        return [*tensors, *self.query_key_value.held(), *self.output.held()]


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[AnyLinear]):
    """One layer's weights and config. Norms are fp32 `[hidden]` or None."""

    config: LayerConfig
    attention_norm: Tensor | None
    attention: HeadWeights[AnyLinear] | LatentWeights[AnyLinear]
    attention_post_norm: Tensor | None
    mlp_norm: Tensor | None
    mlp: DenseWeights[AnyLinear] | ExpertsWeights[AnyLinear]
    mlp_post_norm: Tensor | None

    def held(self) -> list[Tensor]:
        norms = (self.attention_norm, self.attention_post_norm, self.mlp_norm, self.mlp_post_norm)
        return [*(norm for norm in norms if norm is not None), *self.attention.held(), *self.mlp.held()]


def load_layer(
    config: ModelConfig, make: LinearFactory[AnyLinear], names: LayerNames, index: int
) -> LayerWeights[AnyLinear]:
    """Loads the weights of layer `index`, whose tensors are called `names`, with the layer's prefix.

    Raises `ModelError` where the checkpoint lacks a tensor or has another shape.
    """
    layer = config.layers[index]

    def norm(name: str | None) -> Tensor | None:
        return None if name is None else make.norm(name, config.hidden_size, config.norm_offset)

    return LayerWeights(
        config=shard_layer(layer, make.group.shard),
        attention_norm=norm(names.attention_norm),
        attention=_attention(config, layer.attention, make, names),
        attention_post_norm=norm(names.attention_post_norm),
        mlp_norm=norm(names.mlp_norm),
        mlp=_mlp(config, layer.mlp, make, names),
        mlp_post_norm=norm(names.mlp_post_norm),
    )


def _mlp(
    config: ModelConfig, mlp: DenseMLP | ExpertsMLP, make: LinearFactory[AnyLinear], names: LayerNames
) -> DenseWeights[AnyLinear] | ExpertsWeights[AnyLinear]:
    if isinstance(mlp, ExpertsMLP):
        return load_experts(config, mlp, make, names)
    return load_dense(config, mlp, make, names.gate_up, names.down, adaptable=True)


def _attention(
    config: ModelConfig,
    attention: HeadAttention | LatentAttention,
    make: LinearFactory[AnyLinear],
    names: LayerNames,
) -> HeadWeights[AnyLinear] | LatentWeights[AnyLinear]:
    if isinstance(attention, LatentAttention):
        return load_latent(config, attention, make, names)
    return _heads(config, attention, make, names)


def _heads(
    config: ModelConfig, attention: HeadAttention, make: LinearFactory[AnyLinear], names: LayerNames
) -> HeadWeights[AnyLinear]:
    hidden, dim, shard = config.hidden_size, attention.head_dim, make.group.shard
    queries, keys = attention.heads * dim, attention.kv_heads * dim
    own_heads, own_kv_heads = shard.part(attention.heads), shard.kv_heads(attention.kv_heads)
    return HeadWeights(
        query_key_value=make.linear(
            names.query_key_value,
            [queries, keys, keys],
            hidden,
            attention.bias,
            order=_output_order(attention),
            adaptable=True,
            held=[scaled(own_heads, dim), scaled(own_kv_heads, dim), scaled(own_kv_heads, dim)],
        ),
        query_key_norm=_head_norms(config, attention, make, names) if attention.norm != "none" else None,
        output=make.row_parallel(
            names.attention_output,
            hidden,
            queries,
            attention.heads,
            attention.output_bias,
            scale=config.residual_scale,
            adaptable=True,
        ),
        sinks=make.tensor(names.sinks, (attention.heads,))[own_heads].float() if attention.sinks else None,
    )


def _output_order(attention: HeadAttention) -> Tensor | None:
    rope = attention.rope
    if rope is None or not rope.interleaved:
        return None
    turned = halves_order(attention.heads + attention.kv_heads, attention.head_dim, rope.dim)
    kept = torch.arange(len(turned), len(turned) + attention.kv_heads * attention.head_dim)
    return torch.cat((turned, kept))


def _head_norms(
    config: ModelConfig, attention: HeadAttention, make: LinearFactory[AnyLinear], names: LayerNames
) -> Tensor:
    """Loads one weight for each head, `[heads + kv_heads, head_dim]`: one operator norms queries and keys."""
    weights = []
    shard = make.group.shard
    own = shard.part(attention.heads), shard.kv_heads(attention.kv_heads)
    for name, heads, held in zip(
        (names.query_norm, names.key_norm), (attention.heads, attention.kv_heads), own, strict=True
    ):
        once = 1 if attention.norm == "head" else heads
        weight = make.norm(name, once * attention.head_dim, config.norm_offset)
        weights.append(weight.view(once, attention.head_dim).expand(heads, -1)[held])
    return torch.cat(weights)
