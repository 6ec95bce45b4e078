"""Mistral and Ministral: a window in all, some or no layers."""

from typing import Any

from contracts.errors import OptionError
from engine.model.config import LayerConfig
from engine.model.families.family import ConfigFields, ModelFamily, ModelNames
from engine.model.families.reading import dense_mlp, head_attention, rope_of, windows_of


def read(config: Any, name: str) -> ConfigFields:
    window = int(config.sliding_window or 0)
    attention = head_attention(config, name, rope_of(config, name), window=window)
    return {"layers": (LayerConfig(attention, dense_mlp(config, name)),) * int(config.num_hidden_layers)}


def read_ministral(config: Any, name: str) -> ConfigFields:
    rope, mlp = rope_of(config, name), dense_mlp(config, name)
    attentions = (head_attention(config, name, rope, window=window) for window in windows_of(config, name))
    return {"layers": tuple(LayerConfig(attention, mlp) for attention in attentions)}


def read_3(config: Any, name: str) -> ConfigFields:
    if config.model_type != "mistral":
        raise OptionError(f"{name}: a language model of type {config.model_type} is not supported; supported: mistral")
    return read(config, name)


MISTRAL_FAMILY = ModelFamily(("MistralForCausalLM",), read)
MISTRAL_3 = ModelFamily(("Mistral3ForConditionalGeneration",), read_3, ModelNames().beside_images())
MINISTRAL_FAMILY = ModelFamily(("MinistralForCausalLM",), read_ministral)
