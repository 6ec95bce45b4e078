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
    architecture: str = ""  # transformers' class; encoders need none
    quantized: bool = False  # whether the checkpoint's weights are
    beside_images: bool = False  # whether the config is that of the language model in a model that reads more than text

    def described(self, layers: tuple[AttentionLayer, ...]) -> WrappedConfig:
        """Adds the layers that the probe has found."""
        config = self.config
        return WrappedConfig(
            name=self.name,
            architecture=self.architecture,
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
    quantization = quantization_of(raw, name)
    whole = auto_config(directory, trust_remote_code=trust_remote_code)
    config = whole.get_text_config()
    if whole.is_encoder_decoder or config.is_encoder_decoder:
        raise ModelError(f"{name}: encoder-decoder models are not served, and {whole.model_type} is one")
    if config is not whole and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        parts = ", ".join(sorted(whole.sub_configs))
        raise ModelError(
            f"{name}: models that read more than text are served as language models, but transformers has none of type"
            f" {config.model_type} (its config has {parts})"
        )
    _refuse_states(config, name, trust_remote_code=trust_remote_code)
    longest = int(getattr(config, "max_position_embeddings", None) or 0)
    if longest and max_model_len > longest:
        raise ConfigError("max_model_len", max_model_len, f"the model was made for at most {longest} positions")
    if not longest and not max_model_len:
        raise ConfigError("max_model_len", max_model_len, "the model's config names no longest text; say one")
    served = max_model_len or longest
    _refuse_ropes(config, name, served)
    config.tie_word_embeddings = whole.tie_word_embeddings
    if quantization is not None:
        _refuse_own_code(config, name)
        for each in (whole, config):  # transformers gets the numbers that the weights stand for
            if hasattr(each, "quantization_config"):
                del each.quantization_config
    ends = eos_of(directory, config) or eos_of(directory, whole)
    return OwnConfig(
        name=name,
        config=config,
        positions=longest or served,
        max_model_len=served,
        eos_token_ids=ends,
        trust_remote_code=trust_remote_code,
        architecture=_architecture(whole),
        beside_images=config is not whole,
        quantized=quantization is not None,
    )


def refuse_untrusted(raw: dict[str, Any], name: str, *, trust_remote_code: bool) -> None:
    """Raises `ModelError` for a model whose own code is not trusted."""
    if "auto_map" in raw and raw.get("model_type") not in CONFIG_MAPPING_NAMES and not trust_remote_code:
        raise ModelError(
            f"{name}: its code is its own (auto_map in config.json), and only --trust-remote-code has it run here"
        )


def refuse_quantized(raw: dict[str, Any], name: str) -> None:
    """Raises `ModelError` for a quantized checkpoint."""
    quantization = quantization_of(raw, name)
    if quantization is not None:
        method = quantization.get("quant_method", "unknown")
        raise ModelError(
            f"{name}: its checkpoint is quantized ({method}), and encoders are served from fp32, bf16 or fp16 only"
        )


def _refuse_own_code(config: Any, name: str) -> None:
    """Raises `ModelError` for a quantized checkpoint of a model whose code is its own."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(
            f"{name}: its checkpoint is quantized, which is served only with transformers' code, and not with its own"
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
    parameters = getattr(config, "rope_parameters", None) or {}
    for each in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
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
