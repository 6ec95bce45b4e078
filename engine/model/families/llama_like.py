"""Llama with other biases (Seed-OSS), windows (CWM) or rotation of neighbouring pairs (ERNIE 4.5, Helium)."""

from typing import Any

from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily
from engine.model.families.reading import dense_mlp, head_attention, rope_of, windows_of


def read_seed_oss(config: Any, name: str) -> ConfigFields:
    attention = head_attention(
        config,
        name,
        rope_of(config, name),
        bias=bool(config.attention_bias),
        output_bias=bool(config.attention_out_bias),
    )
    mlp = dense_mlp(config, name, bool(config.mlp_bias))
    return {"layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers)}


def read_cwm(config: Any, name: str) -> ConfigFields:
    rope, mlp = rope_of(config, name), dense_mlp(config, name, bool(config.mlp_bias))
    attentions = (head_attention(config, name, rope, window=window) for window in windows_of(config, name))
    return {"layers": tuple(LayerConfig(attention, mlp) for attention in attentions)}


def read_ernie(config: Any, name: str) -> ConfigFields:
    rope, bias = rope_of(config, name, interleaved=True), bool(config.use_bias)
    attention = head_attention(config, name, rope, bias=bias, output_bias=bias)
    return {"layers": (LayerConfig(attention, dense_mlp(config, name, bias)),) * int(config.num_hidden_layers)}


def read_helium(config: Any, name: str) -> ConfigFields:
    rope = rope_of(config, name, interleaved=True)
    attention = head_attention(config, name, rope, bias=bool(config.attention_bias))
    mlp = dense_mlp(config, name, bool(config.mlp_bias))
    return {"layers": (LayerConfig(attention, mlp),) * int(config.num_hidden_layers)}


SEED_OSS = ModelFamily(("SeedOssForCausalLM",), read_seed_oss)
CWM_FAMILY = ModelFamily(("CwmForCausalLM",), read_cwm)
ERNIE_4_5 = ModelFamily(("Ernie4_5ForCausalLM",), read_ernie)
HELIUM_FAMILY = ModelFamily(("HeliumForCausalLM",), read_helium)
