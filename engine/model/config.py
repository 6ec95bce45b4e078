"""Reads which model it is: one struct, whose fields are all that tells the supported architectures apart."""

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from core.errors import ConfigError, ModelError
from engine.model.rope import ROPE_TYPES, Rope, yarn_magnitude

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class ModelConfig(Struct, frozen=True, kw_only=True):
    """Describes a dense decoder-only transformer: pre-norm, rotary positions, gated SiLU MLP."""

    name: str  # of the model's directory
    architecture: str  # as transformers calls it
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of the MLP
    layers: int
    heads: int  # of queries
    kv_heads: int  # of keys, and of values
    head_dim: int
    norm_eps: float
    rope: Rope
    windows: tuple[int, ...]  # per layer: tokens that a query sees, itself included; 0 is all
    max_model_len: int  # tokens of the longest text
    eos_token_ids: tuple[int, ...]  # tokens that end an answer
    qkv_bias: bool = False
    output_bias: bool = False  # of attention's output
    mlp_bias: bool = False
    qk_norm: bool = False  # each head of queries and keys is normed
    tied_head: bool = False  # the head's weights are the embedding's


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
    heads = int(config.num_attention_heads)
    kv_heads = int(config.num_key_value_heads or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(f"{directory.name}: {heads} heads of {head_dim} with {kv_heads} KV heads do not fit together")
    if config.hidden_act != "silu":
        raise ModelError(f"{directory.name}: activation {config.hidden_act} is not supported; supported: silu")
    return ModelConfig(
        name=directory.name,
        architecture=architecture,
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        intermediate_size=int(config.intermediate_size),
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=float(config.rms_norm_eps),
        rope=_rope(config, directory.name),
        windows=_windows(config, architecture, directory.name),
        max_model_len=max_model_len or int(config.max_position_embeddings),
        eos_token_ids=_eos(directory, config),
        tied_head=bool(config.tie_word_embeddings),
        **_variant(architecture, config),
    )


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    if len(names) == 1 and names[0] in SUPPORTED:
        return str(names[0])
    found = ", ".join(map(str, names)) or f"model type {raw.get('model_type', 'unknown')} without architectures"
    raise ModelError(f"architecture {found} is not supported; supported: {', '.join(SUPPORTED)}")


def _variant(architecture: str, config: Any) -> dict[str, bool]:
    """Returns the fields in which the four architectures differ."""
    match architecture:
        case "LlamaForCausalLM":
            bias = bool(config.attention_bias)
            return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bool(config.mlp_bias)}
        case "MistralForCausalLM":
            return {}
        case "Qwen2ForCausalLM":
            return {"qkv_bias": True}
        case _:
            bias = bool(config.attention_bias)
            return {"qkv_bias": bias, "output_bias": bias, "qk_norm": True}


def _windows(config: Any, architecture: str, name: str) -> tuple[int, ...]:
    """Reads the window of each layer: Mistral has one for all, Qwen names the layers that have it, Llama has none."""
    layers = int(config.num_hidden_layers)
    window = int(getattr(config, "sliding_window", None) or 0)
    if architecture == "LlamaForCausalLM":
        return (0,) * layers
    if architecture == "MistralForCausalLM":
        return (window,) * layers
    kinds = list(config.layer_types)
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown or len(kinds) != layers:
        raise ModelError(f"{name}: layer_types {unknown or len(kinds)} are not supported for {layers} layers")
    if "sliding_attention" in kinds and not window:
        raise ModelError(f"{name}: layer_types names sliding_attention, but there is no sliding_window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _rope(config: Any, name: str) -> Rope:
    given = dict(config.rope_parameters or {})
    kind = given.get("rope_type", "default")
    if any(isinstance(value, dict) for value in given.values()):
        raise ModelError(f"{name}: rope parameters that differ by layer are not supported")
    if kind not in ROPE_TYPES:
        raise ModelError(f"{name}: rope type {kind} is not supported; supported: {', '.join(ROPE_TYPES)}")
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{name}: rotating a part of each head (partial_rotary_factor) is not supported")
    try:
        return _rope_of(kind, given, int(config.max_position_embeddings))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{name}: rope type {kind} lacks or misstates {error}") from None


def _rope_of(kind: str, given: dict[str, Any], positions: int) -> Rope:
    theta = float(given.get("rope_theta") or 10000.0)
    if kind == "default":
        return Rope(theta=theta)
    factor = float(given["factor"])
    if kind == "linear":
        return Rope(type="linear", theta=theta, factor=factor)
    original = int(given.get("original_max_position_embeddings") or positions)
    if kind == "llama3":
        low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
        return Rope(
            type="llama3",
            theta=theta,
            factor=factor,
            original_max_len=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    magnitude = given.get("attention_factor")
    if magnitude is None:
        magnitude = yarn_magnitude(factor, float(given.get("mscale") or 0), float(given.get("mscale_all_dim") or 0))
    return Rope(
        type="yarn",
        theta=theta,
        factor=factor,
        original_max_len=original,
        beta_fast=float(given.get("beta_fast") or 32),
        beta_slow=float(given.get("beta_slow") or 1),
        magnitude=float(magnitude),
        truncate=bool(given.get("truncate", True)),
    )


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


def computation(config: ModelConfig) -> bytes:
    """Encodes what decides the KV of given tokens and weights, for a digest: all but names and limits."""
    return msgspec.json.encode(msgspec.structs.replace(config, name="", max_model_len=0, eos_token_ids=()))
