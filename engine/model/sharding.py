"""How a model is divided among the ranks of a tensor-parallel group: each rank's config, and the widths that fit.

| layer | cut by |
| --- | --- |
| queries; keys and values | outputs, in whole heads; a KV head that several ranks need is on each of them |
| attention's output | inputs, in whole heads |
| latent attention | heads; the products for latent vectors, and the cache, are on every rank |
| gate and up | outputs |
| down | inputs |
| experts | whole experts; the expert that all tokens use as a dense MLP |
| embedding, head | tokens of the vocabulary |
| norms, sinks of own heads, router | not at all |
"""

from msgspec import structs

from contracts.errors import ConfigError
from engine.model.config import DenseMLP, ExpertsMLP, HeadAttention, LayerConfig, ModelConfig
from engine.parallel.shard import Shard, length
from infra.config.engine import RANK_COUNTS


def shard_layer(layer: LayerConfig, shard: Shard) -> LayerConfig:
    """Returns the layer as this rank computes it: its own heads and inner values. Routers stay whole."""
    attention, mlp = layer.attention, layer.mlp
    heads = length(shard.part(attention.heads))
    if isinstance(attention, HeadAttention):
        attention = structs.replace(attention, heads=heads, kv_heads=length(shard.kv_heads(attention.kv_heads)))
    else:
        attention = structs.replace(attention, heads=heads)
    if isinstance(mlp, DenseMLP):
        mlp = structs.replace(mlp, intermediate=length(shard.part(mlp.intermediate)))
    return structs.replace(layer, attention=attention, mlp=mlp)


def shard_config(config: ModelConfig, shard: Shard) -> ModelConfig:
    return structs.replace(config, layers=tuple(shard_layer(layer, shard) for layer in config.layers))


def refuse_width(config: ModelConfig, ranks: int) -> None:
    """Raises `ConfigError`, with the widths that fit, if the model cannot be cut among this number of ranks."""
    why = _why_not(config, ranks)
    if why:
        fit = ", ".join(str(width) for width in RANK_COUNTS if not _why_not(config, width))
        raise ConfigError("tensor_parallel", ranks, f"{why}; widths that fit {config.name}: {fit}")


def _why_not(config: ModelConfig, ranks: int) -> str:
    if ranks == 1:
        return ""
    if ranks not in RANK_COUNTS:
        return f"a width is {', '.join(map(str, RANK_COUNTS[:-1]))} or {RANK_COUNTS[-1]}"
    for layer in dict.fromkeys(config.layers):
        attention, mlp = layer.attention, layer.mlp
        if attention.heads % ranks:
            return f"{attention.heads} heads cannot be divided among {ranks} ranks"
        if isinstance(attention, HeadAttention):
            if attention.kv_heads % ranks and ranks % attention.kv_heads:
                return f"{attention.kv_heads} KV heads cannot be divided among {ranks} ranks"
            if attention.norm == "all":
                return "a norm over all heads needs all of them on one rank"
        if isinstance(mlp, DenseMLP) and mlp.intermediate % ranks:
            return f"{mlp.intermediate} inner values of an MLP cannot be divided among {ranks} ranks"
        if isinstance(mlp, ExpertsMLP):
            if mlp.experts < ranks:
                return f"{mlp.experts} experts cannot be divided among {ranks} ranks"
            if mlp.shared and mlp.shared % ranks:
                return f"{mlp.shared} inner values of the shared expert cannot be divided among {ranks} ranks"
    return ""
