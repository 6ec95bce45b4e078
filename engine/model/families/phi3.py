"""Describes Phi-3 and Phi-4: fused products, LongRoPE, and a rotation that takes only a part of a head."""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import Family, Fields, LayerNames, Names
from engine.model.families.reading import dense_mlp, head_attention, rope_of

FUSED = LayerNames(query_key_value=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def read(config: Any, name: str) -> Fields:
    """See `Family.read`."""
    window = int(config.sliding_window or 0)
    attention = head_attention(config, name, rope_of(config, name, partial=True), window=window)
    mlp = dense_mlp(config, name)
    return {"layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers)}


FAMILY = Family(("Phi3ForCausalLM",), read, Names(of_layer=FUSED))
