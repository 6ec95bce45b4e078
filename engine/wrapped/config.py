"""Reads the config of a model that transformers' own code computes, and rejects models that cannot be served that way.

`engine/wrapped/probe.py` finds the facts that a config does not contain.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from contracts.errors import ConfigError, ModelError
from engine.model.config import AttentionLayer, TextModel
from engine.model.config_files import auto_config, eos_of, quantization_of, raw_config

PAGEABLE_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
"""Entries of `layer_types` whose state is keys and values, which KV blocks can store."""
LENGTH_DEPENDENT_ROPES = {"dynamic", "longrope"}
"""Rotations that change for a whole step if one of its sequences exceeds the training length."""


class WrappedConfig(TextModel, frozen=True, kw_only=True):
    """A model that transformers' own code computes."""

    own: str  # digest of transformers' config, since its code computes the model


@dataclass(frozen=True)
class OwnConfig:
    """transformers' config, before the probe has found the attention of each layer."""

    name: str  # of the model's directory
    config: Any
    positions: int  # maximum length that the model was trained for
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    trust_remote_code: bool

    def described(self, layers: tuple[AttentionLayer, ...]) -> WrappedConfig:
        """Adds the layers that the probe has found."""
        config = self.config
        return WrappedConfig(
            name=self.name,
            architecture=_architecture(config),
            vocab_size=int(config.vocab_size),
            layers=layers,
            max_model_len=self.max_model_len,
            eos_token_ids=self.eos_token_ids,
            own=_digest(config),
        )


def read_own_config(directory: Path, max_model_len: int, *, trust_remote_code: bool) -> OwnConfig:
    """Reads the config in `directory`; `max_model_len` lowers the model's own limit, 0 keeps it.

    Raises `ModelError` for models with another state than keys and values, that read more than text, or whose own code
    is not trusted; `ConfigError` for a limit that is missing or above the model's.
    """
    name, raw = directory.name, raw_config(directory)
    refuse_untrusted(raw, name, trust_remote_code=trust_remote_code)
    refuse_quantized(raw, name)
    config = auto_config(directory, trust_remote_code=trust_remote_code)
    if config.get_text_config() is not config:
        parts = ", ".join(sorted(config.sub_configs))
        raise ModelError(f"{name}: models that read more than text are not served (its config has {parts})")
    if config.is_encoder_decoder:
        raise ModelError(f"{name}: encoder-decoder models are not served, and {config.model_type} is one")
    _refuse_states(config, name, trust_remote_code=trust_remote_code)
    longest = int(getattr(config, "max_position_embeddings", None) or 0)
    if longest and max_model_len > longest:
        raise ConfigError("max_model_len", max_model_len, f"the model was made for at most {longest} positions")
    if not longest and not max_model_len:
        raise ConfigError("max_model_len", max_model_len, "the model's config names no longest text; say one")
    served = max_model_len or longest
    _refuse_ropes(config, name, served)
    return OwnConfig(name, config, longest or served, served, eos_of(directory, config), trust_remote_code)


def refuse_untrusted(raw: dict[str, Any], name: str, *, trust_remote_code: bool) -> None:
    """Raises `ModelError` for a model whose own code is not trusted."""
    if "auto_map" in raw and raw.get("model_type") not in CONFIG_MAPPING_NAMES and not trust_remote_code:
        raise ModelError(
            f"{name}: its code is its own (auto_map in config.json), and only --trust-remote-code has it run here"
        )


def refuse_quantized(raw: dict[str, Any], name: str) -> None:
    """Raises `ModelError` for a quantized checkpoint."""
    given = quantization_of(raw, name)
    if given is not None:
        method = given.get("quant_method", "unknown")
        raise ModelError(
            f"{name}: its checkpoint is quantized ({method}), and what transformers' own code computes is served from"
            " fp32, bf16 or fp16 only; --quantization quantizes such a checkpoint when it is loaded"
        )


def _refuse_states(config: Any, name: str, *, trust_remote_code: bool) -> None:
    """Raises `ModelError` for a model that is no causal language model, or has layers with another state."""
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    comes_with_one = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if model is None and not (comes_with_one and trust_remote_code):
        hint = "; --trust-remote-code has its own run here" if comes_with_one else ""
        raise ModelError(f"{name}: transformers has no causal language model of type {config.model_type}{hint}")
    listed = set(getattr(config, "layer_types", None) or ())
    kinds = sorted(listed - PAGEABLE_LAYER_TYPES)
    if kinds or (not listed and getattr(model, "_is_stateful", False)):  # a hybrid may have attention alone: Granite 4
        who = model.__name__ if model is not None else config.model_type
        layers = f" (in layers of kind {', '.join(kinds)})" if kinds else ""
        raise ModelError(f"{name}: {who} keeps a state that is not keys and values of attention{layers}: not served")


def _refuse_ropes(config: Any, name: str, longest: int) -> None:
    """Raises `ModelError` for rotations that depend on the other sequences of a step."""
    given = getattr(config, "rope_parameters", None) or {}
    for each in [given, *(value for value in given.values() if isinstance(value, dict))]:
        kind = each.get("rope_type")
        original = int(each.get("original_max_position_embeddings") or config.max_position_embeddings)
        if kind in LENGTH_DEPENDENT_ROPES and longest > original:
            raise ModelError(
                f"{name}: transformers turns rope type {kind} for all texts of a step by the longest of them;"
                f" --max-model-len {original} serves it without"
            )


def _architecture(config: Any) -> str:
    names = getattr(config, "architectures", None) or []
    return str(names[0]) if names else str(config.model_type)


def _digest(config: Any) -> str:
    said = config.to_dict()
    for key in ("_name_or_path", "architectures", "dtype", "transformers_version", "auto_map"):
        said.pop(key, None)
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:32]
