"""Phi-3 and Phi-4: fused tensors, LongRoPE, rotation of a part of each head."""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, LayerNames, ModelFamily, ModelNames
from engine.model.families.reading import dense_mlp, head_attention, rope_of

FUSED_NAMES = LayerNames(query_key_value=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def read(config: Any, name: str) -> ConfigFields:
    window = int(config.sliding_window or 0)
    attention = head_attention(config, name, rope_of(config, name, partial=True), window=window)
    mlp = dense_mlp(config, name)
    return {"layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers)}


PHI_3 = ModelFamily(("Phi3ForCausalLM",), read, ModelNames(of_layer=FUSED_NAMES))
