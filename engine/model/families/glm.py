"""GLM-4, under both class names: half of each head is rotated, in neighbouring pairs; gate and up are one tensor.

`Glm4ForCausalLM` (GLM-4-0414) also has norms after attention and MLP.
"""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, LayerNames, ModelFamily, ModelNames
from engine.model.families.reading import dense_mlp, head_attention, rope_of


def read(config: Any, name: str) -> ConfigFields:
    rope = rope_of(config, name, partial=True, interleaved=True)
    attention = head_attention(config, name, rope, bias=bool(config.attention_bias))
    mlp = dense_mlp(config, name)
    return {"layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers)}


GLM_4 = ModelFamily(("GlmForCausalLM",), read, ModelNames(of_layer=LayerNames(gate_up=("mlp.gate_up_proj",))))
GLM_4_0414 = ModelFamily(
    ("Glm4ForCausalLM",),
    read,
    ModelNames(
        of_layer=LayerNames(
            gate_up=("mlp.gate_up_proj",),
            attention_post_norm="post_self_attn_layernorm",
            mlp_post_norm="post_mlp_layernorm",
        )
    ),
)
