"""Reads the config of a model's directory, by its family."""

from pathlib import Path
from typing import Any

from msgspec import structs

from contracts.errors import ConfigError, ModelError
from engine.model.checkpoint.config_validators import load_validators
from engine.model.config import LayerConfig, ModelConfig
from engine.model.config_files import auto_config, eos_of, raw_config
from engine.model.families.family import ConfigFields
from engine.model.families.registry import SUPPORTED_ARCHITECTURES, family_of, served_architecture
from engine.model.formats.registry import format_of
from engine.model.rope import served


def read_config(directory: Path, max_model_len: int = 0) -> ModelConfig:
    """Reads the config in `directory`; `max_model_len` lowers the model's own limit, 0 keeps it.

    Raises `ModelError` for a config that is missing, broken or not supported, `ConfigError` for too high a limit.
    """
    raw = raw_config(directory)
    architecture = _architecture(raw)
    family = family_of(architecture)
    format_of(raw, directory.name)  # raises for unknown formats before anything is loaded
    load_validators()
    whole = auto_config(directory)
    config = whole.get_text_config()  # itself, unless the model also reads images
    if max_model_len > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise ConfigError("max_model_len", max_model_len, f"the model was made for at most {limit} positions")
    common: ConfigFields = {
        "name": directory.name,
        "architecture": architecture,
        "vocab_size": int(config.vocab_size),
        "hidden_size": int(config.hidden_size),
        "norm_eps": float(config.rms_norm_eps),
        "max_model_len": max_model_len or int(config.max_position_embeddings),
        "eos_token_ids": eos_of(directory, config),
        "tied_head": bool(whole.tie_word_embeddings),
    }
    found = ModelConfig(**(common | family.read(config, directory.name)))
    longest, behind = found.max_model_len, found.next_layer
    return structs.replace(
        found,
        layers=tuple(_served(layer, longest) for layer in found.layers),
        next_layer=None if behind is None else _served(behind, longest),
    )


def _served(layer: LayerConfig, longest: int) -> LayerConfig:
    attention = layer.attention
    if attention.rope is None:
        return layer
    return structs.replace(layer, attention=structs.replace(attention, rope=served(attention.rope, longest)))


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    if (served := served_architecture(names)) is not None:
        return served
    found = ", ".join(map(str, names)) or f"model type {raw.get('model_type', 'unknown')} without architectures"
    raise ModelError(f"architecture {found} is not supported; supported: {', '.join(SUPPORTED_ARCHITECTURES)}")
