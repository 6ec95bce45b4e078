"""Estimates what a step of a model costs by its files: bytes of weights and of KV, and weights that a token meets."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints.weight_sizes import TOKEN_TABLE_REGEX, float_bytes, least_of, tensor_bytes, text_config

EXPERT_REGEX = re.compile(r"\.experts\.")
EXPERT_COUNT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")
USED_EXPERT_FIELDS = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
FOUR_BIT_METHODS = ("awq", "gptq", "mxfp4")
KV_VALUE_BYTES = 2


@dataclass(frozen=True)
class ModelSize:
    """A model's figures: `parameters` are the weights that each token is multiplied by."""

    parameters: float
    weights_bytes: float
    token_bytes: float  # KV of a token in all layers


TYPICAL_SIZE = ModelSize(parameters=7.5e9, weights_bytes=16e9, token_bytes=131_072)
"""A dense model of 8 billion weights in bf16, for a model that is not on this host yet."""


def model_size(directory: Path, dtype: str, quantization: str) -> ModelSize:
    """Estimates the size of a model, given the values of `--dtype` and `--quantization`.

    A directory whose weights cannot be read, such as an unpacked GGUF model's, has a typical size.
    """
    config = text_config(directory)
    sizes = tensor_bytes(directory, dtype, quantization)
    if not sizes:
        return TYPICAL_SIZE
    linear = {name: size for name, size in sizes.items() if not TOKEN_TABLE_REGEX.search(name)}
    experts = sum(size for name, size in linear.items() if EXPERT_REGEX.search(name))
    met = sum(linear.values()) - experts * (1 - _used_share(config))
    return ModelSize(met / _value_bytes(config, dtype, quantization), least_of(sizes), _token_bytes(config))


def _used_share(config: dict[str, Any]) -> float:
    """Returns the share of a layer's experts that a token uses."""
    used, there = _number(config, *USED_EXPERT_FIELDS), _number(config, *EXPERT_COUNT_FIELDS)
    return min(1.0, used / there) if used and there else 1.0


def _value_bytes(config: dict[str, Any], dtype: str, quantization: str) -> float:
    """Returns the bytes of most weights."""
    packed = config.get("quantization_config")
    if not isinstance(packed, dict):
        return float_bytes(dtype, quantization)
    usual = 4 if packed.get("quant_method") in FOUR_BIT_METHODS else 8
    return (_number(packed, "bits") or usual) / 8


def _token_bytes(config: dict[str, Any]) -> float:
    layers = _number(config, "num_hidden_layers")
    if latent := _number(config, "kv_lora_rank"):
        return layers * (latent + _number(config, "qk_rope_head_dim")) * KV_VALUE_BYTES
    heads = _number(config, "num_attention_heads")
    width = _number(config, "head_dim") or (_number(config, "hidden_size") / heads if heads else 0.0)
    return layers * 2 * (_number(config, "num_key_value_heads") or heads) * width * KV_VALUE_BYTES


def _number(config: dict[str, Any], *fields: str) -> float:
    """Returns the first of these fields that is a number, or 0."""
    return next((float(config[field]) for field in fields if isinstance(config.get(field), int | float)), 0.0)
