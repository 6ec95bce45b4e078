"""Reads the JSON files of a model's directory, and its config by transformers."""

import json
from pathlib import Path
from typing import Any

from contracts.errors import ModelError

CONFIG_TYPE_ALIASES = {"kimi_k2": "deepseek_v3"}
"""Model types unknown to transformers, with a known type that has the same config."""


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises `ModelError` if the file is missing or broken."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}: not a model directory in Hugging Face format") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {sentence_of(error)}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value


def auto_config(directory: Path, *, trust_remote_code: bool = False) -> Any:
    """Returns transformers' config of the model. Raises `ModelError` if it is missing or invalid."""
    from transformers import AutoConfig  # heavy: a service that only reads JSON should not pay for it

    raw = read_json(directory / "config.json")
    try:
        if raw.get("model_type") in CONFIG_TYPE_ALIASES and not trust_remote_code:
            twin = CONFIG_TYPE_ALIASES[raw.pop("model_type")]
            return AutoConfig.for_model(twin, **{key: value for key, value in raw.items() if key != "auto_map"})
        return AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises its validators' own classes
        raise ModelError(f"{directory.name}: config.json is not valid: {sentence_of(error)}") from error


def raw_config(directory: Path) -> dict[str, Any]:
    """Reads config.json, with the quantization from hf_quant_config.json if config.json has none.

    NVIDIA's Model Optimizer wrote only hf_quant_config.json until version 0.29. Raises `ModelError`.
    """
    raw, beside = read_json(directory / "config.json"), directory / "hf_quant_config.json"
    if quantization_of(raw, directory.name) is None and beside.is_file():
        quantization = read_json(beside).get("quantization")
        if not isinstance(quantization, dict):
            raise ModelError(f"{beside} does not say how the weights are quantized")
        scheme = quantization.get("kv_cache_quant_algo")
        raw["quantization_config"] = {"quant_method": "modelopt", "kv_cache_scheme": scheme} | quantization
    return raw


def quantization_of(raw: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Returns the `quantization_config` in a config.json, or None. Raises `ModelError` if it is no object.

    It is at top level or in `text_config`; older compressed-tensors called it `compression_config`.
    """
    objects = [raw, raw.get("text_config") or {}]
    quantizations = [
        part[key] for part in objects for key in ("quantization_config", "compression_config") if key in part
    ]
    if not quantizations:
        return None
    if not isinstance(quantizations[0], dict):
        raise ModelError(f"{name}: the quantization_config in config.json is no object: {str(quantizations[0])[:100]}")
    return quantizations[0]


def eos_of(directory: Path, config: Any) -> tuple[int, ...]:
    """Returns the end-of-answer tokens: generation_config.json often lists more of them than config.json."""
    path = directory / "generation_config.json"
    eos = read_json(path).get("eos_token_id") if path.is_file() else None
    if eos is None:
        eos = getattr(config, "eos_token_id", None)  # a config of several parts may lack it
    if eos is None:
        return ()
    return tuple(int(token) for token in (eos if isinstance(eos, list) else [eos]))


def sentence_of(error: Exception) -> str:
    """Returns a library's error as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
