"""SmolLM3: every fourth layer has no rotation."""

from typing import Any

from contracts.errors import ModelError
from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily
from engine.model.families.reading import dense_mlp, head_attention, rope_of, windows_of


def read(config: Any, name: str) -> ConfigFields:
    rotated, count = list(config.no_rope_layers), int(config.num_hidden_layers)  # 0 where a layer has no rope
    if len(rotated) != count:
        raise ModelError(f"{name}: no_rope_layers has {len(rotated)} entries for {count} layers")
    rope, bias = rope_of(config, name), bool(config.attention_bias)
    windows = windows_of(config, name) if config.use_sliding_window else (0,) * count
    mlp = dense_mlp(config, name, bool(config.mlp_bias))
    attentions = (
        head_attention(config, name, rope if turns else None, window=window, bias=bias, output_bias=bias)
        for turns, window in zip(rotated, windows, strict=True)
    )
    return {"layers": tuple(LayerConfig(attention, mlp) for attention in attentions)}


SMOLLM_3 = ModelFamily(("SmolLM3ForCausalLM",), read)
