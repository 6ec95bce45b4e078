"""Reads the config of a model's directory, by way of its family."""

import json
from pathlib import Path
from typing import Any

from msgspec import structs

from core.errors import ConfigError, ModelError
from engine.model.config import LayerConfig, ModelConfig
from engine.model.families.family import Fields
from engine.model.families.registry import SUPPORTED, family_of
from engine.model.rope import served


def read_config(directory: Path, max_model_len: int = 0) -> ModelConfig:
    """Reads the config of the model in `directory`; `max_model_len` shortens the model's own limit, 0 keeps it.

    Raises `ModelError` for what is missing, broken or not supported, by name, and `ConfigError` for a longer limit.
    """
    raw = _read_json(directory / "config.json")
    architecture = _architecture(raw)
    if "quantization_config" in raw:
        method = (raw["quantization_config"] or {}).get("quant_method", "unknown")
        raise ModelError(
            f"{directory.name}: checkpoints quantized with {method} are not supported; use fp32, bf16 or fp16"
        )
    config = _auto_config(directory)
    if max_model_len > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise ConfigError("max_model_len", max_model_len, f"the model was made for at most {limit} positions")
    common: Fields = {
        "name": directory.name,
        "architecture": architecture,
        "vocab_size": int(config.vocab_size),
        "hidden_size": int(config.hidden_size),
        "norm_eps": float(config.rms_norm_eps),
        "max_model_len": max_model_len or int(config.max_position_embeddings),
        "eos_token_ids": _eos(directory, config),
        "tied_head": bool(config.tie_word_embeddings),
    }
    found = ModelConfig(**(common | family_of(architecture).read(config, directory.name)))
    return structs.replace(found, layers=tuple(_served(layer, found.max_model_len) for layer in found.layers))


def _served(layer: LayerConfig, longest: int) -> LayerConfig:
    """Settles what a layer's rotation is where texts have up to `longest` tokens."""
    attention = layer.attention
    if attention.rope is None:
        return layer
    return structs.replace(layer, attention=structs.replace(attention, rope=served(attention.rope, longest)))


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    if len(names) == 1 and names[0] in SUPPORTED:
        return str(names[0])
    found = ", ".join(map(str, names)) or f"model type {raw.get('model_type', 'unknown')} without architectures"
    raise ModelError(f"architecture {found} is not supported; supported: {', '.join(SUPPORTED)}")


def _auto_config(directory: Path) -> Any:
    from transformers import AutoConfig  # heavy: a service that only reads SUPPORTED should not pay for it

    try:
        return AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises its validators' own classes
        raise ModelError(f"{directory.name}: config.json is not valid: {_sentence(error)}") from error


def _eos(directory: Path, config: Any) -> tuple[int, ...]:
    """Reads the tokens that end an answer: generation_config.json knows more of them than config.json."""
    path = directory / "generation_config.json"
    found = _read_json(path).get("eos_token_id") if path.is_file() else None
    if found is None:
        found = config.eos_token_id
    if found is None:
        return ()
    return tuple(int(token) for token in (found if isinstance(found, list) else [found]))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}: not a model directory in Hugging Face format") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {_sentence(error)}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value


def _sentence(error: Exception) -> str:
    """Brings a library's error onto one line, of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
