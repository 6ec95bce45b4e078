"""Makes a config.json, as transformers reads it, of what a GGUF file says of its model."""

import struct
from collections.abc import Callable
from typing import Any

from checkpoints.gguf.architectures import ARCHITECTURES, Architecture
from checkpoints.gguf.header import Header, StoredTensor
from contracts.errors import ModelError

COMMON = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
SCALED_BY_HIDDEN_SIZE = {"gemma2": 46, "gemma3": 62}
"""Layers of the models of 27 billion weights: their scores are divided by the root of the hidden size per head."""
GEMMA3_PATTERN = 6
"""Of so many layers the last has no window."""
SMOLLM3_STEP = 4
"""Every so-many-th layer rotates nothing."""
GEMMA3_WINDOWED_BASE = 10000.0

ReadTensor = Callable[[str], bytes]
"""Returns the bytes of a tensor that there is."""


class Metadata:
    """Gives the values of one file. Raises `ModelError` for one that is missing or of another kind."""

    def __init__(self, header: Header, name: str) -> None:
        self.header = header
        self.name = name
        self.family = str(self.required("general.architecture", str))

    def required(self, key: str, kind: type | tuple[type, ...] = (int, float)) -> Any:
        """Returns the value of a key. Raises `ModelError` where there is none, or it is not of this kind."""
        if key not in self.header.metadata:
            raise ModelError(f"{self.name}: the metadata lack {key}")
        value = self.header.metadata[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelError(f"{self.name}: the metadata have {str(value)[:40]!r} for {key}, which is not served")
        return value

    def own(self, key: str) -> Any:
        """Returns a number that the architecture's metadata have, or None."""
        whole = f"{self.family}.{key}"
        return self.required(whole) if whole in self.header.metadata else None

    def tensor(self, name: str) -> StoredTensor:
        """Says where a tensor lies. Raises `ModelError` where there is none."""
        if name not in self.header.tensors:
            raise ModelError(f"{self.name}: the weights lack {name}")
        return self.header.tensors[name]


def architecture_of(header: Header, name: str) -> Architecture:
    """Returns what the architecture of a file is. Raises `ModelError` for one that is not served, by its name."""
    given = Metadata(header, name)
    family = given.family
    if family not in ARCHITECTURES:
        served = ", ".join(known for known in ARCHITECTURES if " " not in known)
        raise ModelError(f"{name}: GGUF of the architecture {family} is not supported; supported: {served}")
    if family == "llama" and given.own("expert_count"):
        return ARCHITECTURES["llama with experts"]
    return ARCHITECTURES[family]


def config_of(header: Header, read: ReadTensor, name: str) -> dict[str, Any]:
    """Returns the config of the model in a file of this `name`, whose tensors are read by `read`.

    Raises `ModelError` for metadata that are missing, and for what is not supported.
    """
    given, architecture = Metadata(header, name), architecture_of(header, name)
    config = {field: given.required(f"{given.family}.{key}") for field, key in (COMMON | architecture.keys).items()}
    config |= {field: given.own(key) for field, key in architecture.optional.items() if given.own(key) is not None}
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = given.own("attention.head_count_kv") or heads
    config["head_dim"] = given.own("attention.key_length") or config["hidden_size"] // heads
    rope = _rope(given, config["head_dim"], read)
    if "original_max_position_embeddings" in rope:  # Phi-3's config has it beside the rotation, not in it
        config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    bias, mlp_bias = "blk.0.attn_q.bias" in header.tensors, "blk.0.ffn_down.bias" in header.tensors
    return (
        config
        | {
            "architectures": [architecture.name],
            "model_type": architecture.model_type,
            "vocab_size": given.tensor("token_embd.weight").shape[0],
            "tie_word_embeddings": "output.weight" not in header.tensors,
            "attention_bias": bias,
            "mlp_bias": mlp_bias,
            "rope_parameters": rope,
            "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": None,
        }
        | architecture.fields
        | _by_layer(given, config, rope)
    )


def _rope(given: Metadata, head_dim: int, read: ReadTensor) -> dict[str, Any]:
    """Reads the rotation: frequencies may be divided by numbers of their own, which tensors have."""
    kind, base = given.header.metadata.get(f"{given.family}.rope.scaling.type", "none"), given.own("rope.freq_base")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base or 10000.0}
    rotated = given.own("rope.dimension_count") or head_dim
    if rotated != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    original = given.own("rope.scaling.original_context_length") or given.own("context_length")
    if factors := _factors(given, read):
        short, long = factors
        rope |= {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        rope |= {"factor": 1.0, "original_max_position_embeddings": original}
        return rope | {"attention_factor": given.own("rope.scaling.attn_factor") or 1.0}
    if kind in ("none", "longrope"):  # of which there are no factors
        return rope
    rope |= {"rope_type": kind, "factor": given.own("rope.scaling.factor")}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = original
        spread = {"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"}
        return rope | {field: given.own(key) for field, key in spread.items() if given.own(key) is not None}
    if kind != "linear":
        raise ModelError(f"{given.name}: the rope scaling {kind} is not supported; supported: none, linear, yarn")
    return rope


def _factors(given: Metadata, read: ReadTensor) -> tuple[list[float], list[float]] | None:
    """Reads what the frequency of each pair is divided by, in texts of the original length and in longer ones."""
    tensors = given.header.tensors
    if "rope_freqs.weight" in tensors:
        both = _floats(given, "rope_freqs.weight", read)
        return both, both
    if "rope_factors_short.weight" in tensors:
        return _floats(given, "rope_factors_short.weight", read), _floats(given, "rope_factors_long.weight", read)
    return None


def _floats(given: Metadata, name: str, read: ReadTensor) -> list[float]:
    tensor = given.tensor(name)
    if tensor.kind.name != "F32":
        raise ModelError(f"{given.name}: {name} is stored as {tensor.kind.name}; supported: F32")
    return list(struct.unpack(f"<{tensor.size // 4}f", read(name)))


def _by_layer(given: Metadata, config: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """Returns what llama.cpp knows of an architecture, and its files do not say."""
    family, layers = given.family, config["num_hidden_layers"]
    if family == "smollm3":
        return {"no_rope_layers": [int((layer + 1) % SMOLLM3_STEP != 0) for layer in range(layers)]}
    if family not in SCALED_BY_HIDDEN_SIZE:
        return {}
    large = layers == SCALED_BY_HIDDEN_SIZE[family]
    scaled = config["hidden_size"] // config["num_attention_heads"] if large else config["head_dim"]
    if family == "gemma2":
        kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
        return {"query_pre_attn_scalar": scaled, "layer_types": kinds}
    windowed = given.own("rope.freq_base_swa") or GEMMA3_WINDOWED_BASE
    pattern = given.own("attention.sliding_window_pattern") or GEMMA3_PATTERN
    kinds = ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers)]
    ropes = {"sliding_attention": {"rope_type": "default", "rope_theta": windowed}, "full_attention": rope}
    return {"query_pre_attn_scalar": scaled, "layer_types": kinds, "rope_parameters": ropes}
