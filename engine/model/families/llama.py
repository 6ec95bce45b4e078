"""Describes Llama 1 to 3: full attention, rotated everywhere."""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily
from engine.model.families.reading import dense_mlp, head_attention, rope_of


def read(config: Any, name: str) -> ConfigFields:
    """See `ModelFamily.read`."""
    bias = bool(config.attention_bias)
    attention = head_attention(config, name, rope_of(config, name), bias=bias, output_bias=bias)
    mlp = dense_mlp(config, name, bool(config.mlp_bias))
    return {"layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers)}


LLAMA_FAMILY = ModelFamily(("LlamaForCausalLM",), read)
