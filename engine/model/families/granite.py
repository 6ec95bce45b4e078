"""Granite: Llama with factors for embeddings, attention scores, residual additions and logits."""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily
from engine.model.families.reading import dense_mlp, head_attention, rope_of


def read(config: Any, name: str) -> ConfigFields:
    bias = bool(config.attention_bias)
    attention = head_attention(
        config, name, rope_of(config, name), scale=float(config.attention_multiplier), bias=bias, output_bias=bias
    )
    mlp = dense_mlp(config, name, bool(config.mlp_bias))
    return {
        "layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers),
        "embedding_scale": float(config.embedding_multiplier),
        "residual_scale": float(config.residual_multiplier),
        "logits_scale": 1.0 / float(config.logits_scaling),
    }


GRANITE_3 = ModelFamily(("GraniteForCausalLM",), read)
