"""Describes Mistral: a window in all layers or in none."""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import Family, Fields
from engine.model.families.reading import dense_mlp, head_attention, rope_of


def read(config: Any, name: str) -> Fields:
    """See `Family.read`."""
    window = int(config.sliding_window or 0)
    attention = head_attention(config, name, rope_of(config, name), window=window)
    mlp = dense_mlp(config, name)
    return {"layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers)}


FAMILY = Family(("MistralForCausalLM",), read)
