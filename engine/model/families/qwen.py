"""Qwen 2 and 3: some layers have a window; Qwen 3 normalizes each head of queries and keys."""

from typing import Any, Literal

from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily
from engine.model.families.reading import dense_mlp, head_attention, rope_of, windows_of


def _read(
    config: Any, name: str, *, bias: bool, output_bias: bool = False, norm: Literal["none", "head"] = "none"
) -> ConfigFields:
    rope = rope_of(config, name)
    mlp = dense_mlp(config, name)
    attentions = (
        head_attention(config, name, rope, window=window, bias=bias, output_bias=output_bias, norm=norm)
        for window in windows_of(config, name)
    )
    return {"layers": tuple(LayerConfig(attention, mlp) for attention in attentions)}


def read_2(config: Any, name: str) -> ConfigFields:
    return _read(config, name, bias=True)


def read_3(config: Any, name: str) -> ConfigFields:
    bias = bool(config.attention_bias)
    return _read(config, name, bias=bias, output_bias=bias, norm="head")


QWEN_2 = ModelFamily(("Qwen2ForCausalLM",), read_2)
QWEN_3 = ModelFamily(("Qwen3ForCausalLM",), read_3)
