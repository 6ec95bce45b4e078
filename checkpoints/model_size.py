"""Estimates the cost of a model's step by its files: bytes of weights and KV, and the weights that each token uses."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints.attention_size import UNKNOWN_ATTENTION, AttentionSize, attention_size
from checkpoints.config_fields import EXPERT_COUNT_FIELDS, USED_EXPERT_FIELDS, number
from checkpoints.config_size import weight_counts
from checkpoints.weight_sizes import TOKEN_TABLE_REGEX, float_bytes, least_of, tensor_bytes, text_config

EXPERT_REGEX = re.compile(r"\.experts\.")
FOUR_BIT_METHODS = ("awq", "gptq", "mxfp4")
KV_VALUE_BYTES = 2


@dataclass(frozen=True)
class ModelSize:
    """A model's figures: `parameters` are the weights that each token is multiplied by."""

    parameters: float
    weights_bytes: float
    token_bytes: float  # KV of a token in all layers
    heads: int = 1  # of a layer's attention
    kv_parts: int = 0  # ranks among which a token's KV can be divided; 0: any number
    max_tokens: int = 0  # of a text; 0: not known
    attention: AttentionSize = UNKNOWN_ATTENTION


TYPICAL_SIZE = ModelSize(parameters=7.5e9, weights_bytes=16e9, token_bytes=131_072)
"""A dense model of 8 billion weights in bf16, for a model that is not on this host yet."""


def model_size(directory: Path, dtype: str, quantization: str) -> ModelSize:
    """Estimates the size of a model, given the values of `--dtype` and `--quantization`.

    Without weights that can be read, such as an unpacked GGUF model's, the config decides; without that, the size is
    typical.
    """
    config = text_config(directory)
    sizes = tensor_bytes(directory, dtype, quantization)
    if not sizes:
        return _size_by_config(config, dtype, quantization) or TYPICAL_SIZE
    linear = {name: size for name, size in sizes.items() if not TOKEN_TABLE_REGEX.search(name)}
    experts = sum(size for name, size in linear.items() if EXPERT_REGEX.search(name))
    met = sum(linear.values()) - experts * (1 - _used_share(config))
    return _sized(config, met / _value_bytes(config, dtype, quantization), least_of(sizes))


def _size_by_config(config: dict[str, Any], dtype: str, quantization: str) -> ModelSize | None:
    """Estimates the size of a model without its files; None for a config that does not say it."""
    counts = weight_counts(config)
    if not counts.met:
        return None
    each = _value_bytes(config, dtype, quantization)
    weights_bytes = counts.stored * each + counts.table * float_bytes(dtype, "none")
    return _sized(config, counts.met, weights_bytes)


def _sized(config: dict[str, Any], parameters: float, weights_bytes: float) -> ModelSize:
    attention = attention_size(config)
    return ModelSize(
        parameters,
        weights_bytes,
        attention.layers * attention.layer_values * KV_VALUE_BYTES,
        heads=attention.heads or 1,
        kv_parts=1 if attention.latent else attention.kv_heads,
        max_tokens=int(number(config, "max_position_embeddings")),
        attention=attention,
    )


def _used_share(config: dict[str, Any]) -> float:
    """Returns the share of a layer's experts that a token uses."""
    used, there = number(config, *USED_EXPERT_FIELDS), number(config, *EXPERT_COUNT_FIELDS)
    return min(1.0, used / there) if used and there else 1.0


def _value_bytes(config: dict[str, Any], dtype: str, quantization: str) -> float:
    """Returns the bytes of most weights."""
    packed = config.get("quantization_config")
    if not isinstance(packed, dict):
        return float_bytes(dtype, quantization)
    usual = 4 if packed.get("quant_method") in FOUR_BIT_METHODS else 8
    return (number(packed, "bits") or usual) / 8
