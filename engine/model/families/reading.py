"""Reads the config fields that most families share."""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from contracts.errors import ModelError, OptionError
from engine.model.config import Activation, DenseMLP, ExpertsMLP, HeadAttention
from engine.model.rope import ROPE_TYPES, Rope, yarn_magnitude

Word = TypeVar("Word")

ACTIVATION_BY_NAME: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def head_attention(
    config: Any,
    name: str,
    rope: Rope | None,
    *,
    window: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
    bias: bool = False,
    output_bias: bool = False,
    norm: Literal["none", "head", "all"] = "none",
    sinks: bool = False,
) -> HeadAttention:
    """Returns one layer's attention; `scale` 0 means head_dim ** -0.5.

    Raises `ModelError` if the numbers of heads and KV heads do not fit together.
    """
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = head_dim_of(config)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(f"{name}: {heads} heads of {head_dim} with {kv_heads} KV heads do not fit together")
    return HeadAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=scale or head_dim**-0.5,
        rope=rope,
        window=window,
        softcap=softcap,
        bias=bias,
        output_bias=output_bias,
        norm=norm,
        sinks=sinks,
    )


def head_dim_of(config: Any) -> int:
    """Returns the config's `head_dim`, or the hidden size divided by the heads."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def activation_of(config: Any, name: str) -> Activation:
    """Raises `OptionError` for an unsupported activation."""
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    return word_of(activation, ACTIVATION_BY_NAME, "activation", name)


def checked(mlp: ExpertsMLP, name: str) -> ExpertsMLP:
    """Returns `mlp`. Raises `ModelError` if its numbers contradict each other."""
    if mlp.groups < 1 or mlp.experts % mlp.groups:
        raise ModelError(f"{name}: {mlp.experts} experts cannot be divided among {mlp.groups} groups")
    if not 1 <= mlp.groups_used <= mlp.groups:
        raise ModelError(f"{name}: {mlp.groups_used} of {mlp.groups} groups of experts cannot be used")
    size = mlp.experts // mlp.groups
    if not 1 <= mlp.used <= mlp.groups_used * size:
        raise ModelError(f"{name}: {mlp.used} of {mlp.groups_used * size} experts cannot be used")
    if mlp.group_score == "best_two" and mlp.groups > 1 and size < 2:
        raise ModelError(f"{name}: groups of {size} experts have no best two")
    return mlp


def word_of(word: Any, known: Mapping[str, Word], what: str, name: str) -> Word:
    """Looks up a config value in `known`. Raises `OptionError` for an unknown one."""
    if word not in known:
        raise OptionError(f"{name}: {what} {word} is not supported; supported: {', '.join(known)}")
    return known[word]


def dense_mlp(config: Any, name: str, bias: bool = False) -> DenseMLP:
    return DenseMLP(intermediate=int(config.intermediate_size), activation=activation_of(config, name), bias=bias)


def kinds_of(config: Any, name: str) -> tuple[str, ...]:
    """Returns `layer_types`. Raises `ModelError` for unknown kinds or a wrong number of entries."""
    layers, kinds = int(config.num_hidden_layers), tuple(config.layer_types)
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown or len(kinds) != layers:
        raise ModelError(f"{name}: layer_types {unknown or len(kinds)} are not supported for {layers} layers")
    return kinds


def windows_of(config: Any, name: str) -> tuple[int, ...]:
    """Returns each layer's window, 0 for full attention. Raises `ModelError` for contradictions."""
    kinds, window = kinds_of(config, name), int(getattr(config, "sliding_window", None) or 0)
    if "sliding_attention" in kinds and not window:
        raise ModelError(f"{name}: layer_types names sliding_attention, but there is no sliding_window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def rope_of(
    config: Any, name: str, kind: str = "", *, dim: int = 0, partial: bool = False, interleaved: bool = False
) -> Rope:
    """Returns the rotation of all layers, or of the layers of one `kind` in `layer_types` if each kind has its own.

    `dim` values of a head are rotated; 0 means the whole head, or with `partial` the share that the config says. Raises
    `OptionError` for an unsupported type, `ModelError` for missing or unsupported parameters.
    """
    parameters = dict(config.rope_parameters or {})
    if kind in parameters:
        parameters = dict(parameters[kind])
    if any(isinstance(value, dict) for value in parameters.values()):
        raise ModelError(f"{name}: rope parameters that differ by layer are not supported")
    rope_type = parameters.get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        raise OptionError(f"{name}: rope type {rope_type} is not supported; supported: {', '.join(ROPE_TYPES)}")
    part = float(parameters.get("partial_rotary_factor") or 1.0)
    if part != 1.0 and not partial:
        raise ModelError(f"{name}: this architecture rotates whole heads, not a partial_rotary_factor of {part}")
    dim = dim or int(head_dim_of(config) * part)
    if dim % 2:
        raise ModelError(f"{name}: {dim} rotated numbers of a head are no pairs (partial_rotary_factor)")
    try:
        fields = _rope_fields(rope_type, parameters, int(config.max_position_embeddings), dim)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"{name}: rope type {rope_type} lacks or misstates {error}") from None
    return Rope(dim=dim, interleaved=interleaved, type=rope_type, **fields)


def _rope_fields(kind: str, parameters: dict[str, Any], positions: int, dim: int) -> dict[str, Any]:
    theta = float(parameters.get("rope_theta") or 10000.0)
    if kind == "default":
        return {"theta": theta}
    if kind == "longrope":
        return {"theta": theta} | _longrope_fields(parameters, positions, dim)
    factor = float(parameters["factor"])
    if kind == "linear":
        return {"theta": theta, "factor": factor}
    original = int(parameters.get("original_max_position_embeddings") or positions)
    fields: dict[str, Any] = {"theta": theta, "factor": factor, "original_max_len": original}
    if kind == "llama3":
        low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
        return fields | {"low_freq_factor": low, "high_freq_factor": high}
    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        mscale, mscale_all_dim = (float(parameters.get(key) or 0) for key in ("mscale", "mscale_all_dim"))
        magnitude = yarn_magnitude(factor, mscale, mscale_all_dim)
    return fields | {
        "beta_fast": float(parameters.get("beta_fast") or 32),
        "beta_slow": float(parameters.get("beta_slow") or 1),
        "magnitude": float(magnitude),
        "truncate": bool(parameters.get("truncate", True)),
    }


def _longrope_fields(parameters: dict[str, Any], positions: int, dim: int) -> dict[str, Any]:
    original = int(parameters["original_max_position_embeddings"])
    short, long = (tuple(map(float, parameters[name])) for name in ("short_factor", "long_factor"))
    if {len(short), len(long)} != {dim // 2}:
        raise ValueError(f"the {dim // 2} numbers of short_factor and long_factor: {len(short)} and {len(long)}")
    factor, magnitude = float(parameters.get("factor") or positions / original), parameters.get("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return {
        "original_max_len": original,
        "factors": short,
        "long_factors": long,
        "magnitude": float(magnitude),
    }
