"""Makes a config.json, as transformers reads it, from a GGUF file's metadata."""

from typing import Any

from gguf.gguf_reader import ReaderTensor

from checkpoints.gguf.architectures import ARCHITECTURES, Architecture
from checkpoints.gguf.header import Header
from contracts.errors import ModelError

COMMON_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""The models of 27 billion weights, by their layers: they scale scores by the hidden size per head."""
GEMMA3_FULL_LAYER_INTERVAL = 6  # the last of each 6 layers has no window
SMOLLM3_NO_ROPE_INTERVAL = 4  # the last of each 4 layers rotates nothing
GEMMA3_WINDOWED_ROPE_BASE = 10000.0


class Metadata:
    """Typed access to one file's metadata. Raises `ModelError` for a missing value or one of another type."""

    def __init__(self, header: Header, name: str) -> None:
        self.header = header
        self.name = name  # of the file
        self.family = str(self.required("general.architecture", str))

    def required(self, key: str, kind: type | tuple[type, ...] = (int, float)) -> Any:
        """Returns the value of a key that must be of this type."""
        if key not in self.header.metadata:
            raise ModelError(f"{self.name}: the metadata lack {key}")
        value = self.header.metadata[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelError(f"{self.name}: the metadata have {str(value)[:40]!r} for {key}, which is not served")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self.header.metadata.get(key, default)

    def of_family(self, key: str) -> Any:
        """Returns the number under `<family>.<key>`, or None."""
        whole = f"{self.family}.{key}"
        return self.required(whole) if whole in self.header.metadata else None

    def tensor(self, name: str) -> ReaderTensor:
        if name not in self.header.tensors:
            raise ModelError(f"{self.name}: the weights lack {name}")
        return self.header.tensors[name]


def architecture_of(metadata: Metadata) -> Architecture:
    """Raises `ModelError` for an architecture that is not supported."""
    family = metadata.family
    if family not in ARCHITECTURES:
        served = ", ".join(known for known in ARCHITECTURES if " " not in known)
        raise ModelError(f"{metadata.name}: GGUF of the architecture {family} is not supported; supported: {served}")
    if family == "llama" and metadata.of_family("expert_count"):
        return ARCHITECTURES["llama with experts"]
    return ARCHITECTURES[family]


def config_of(metadata: Metadata) -> dict[str, Any]:
    """Raises `ModelError` for missing metadata and for values that are not supported."""
    header, architecture = metadata.header, architecture_of(metadata)
    required = COMMON_FIELDS | architecture.required_fields
    config = {field: metadata.required(f"{metadata.family}.{key}") for field, key in required.items()}
    optional = {field: metadata.of_family(key) for field, key in architecture.optional_fields.items()}
    config |= {field: value for field, value in optional.items() if value is not None}
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = metadata.of_family("attention.head_count_kv") or heads
    config["head_dim"] = metadata.of_family("attention.key_length") or config["hidden_size"] // heads
    rope = _rope(metadata, config["head_dim"])
    if "original_max_position_embeddings" in rope:  # Phi-3's config has it beside rope_parameters
        config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    bias, mlp_bias = "blk.0.attn_q.bias" in header.tensors, "blk.0.ffn_down.bias" in header.tensors
    return (
        config
        | {
            "architectures": [architecture.name],
            "model_type": architecture.model_type,
            "vocab_size": metadata.tensor("token_embd.weight").data.shape[0],
            "tie_word_embeddings": "output.weight" not in header.tensors,
            "attention_bias": bias,
            "mlp_bias": mlp_bias,
            "rope_parameters": rope,
            "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": None,
        }
        | architecture.constant_fields
        | _by_layer(metadata, config, rope)
    )


def _rope(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    kind, base = metadata.get(f"{metadata.family}.rope.scaling.type", "none"), metadata.of_family("rope.freq_base")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base or 10000.0}
    rotated = metadata.of_family("rope.dimension_count") or head_dim
    if rotated != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    original = metadata.of_family("rope.scaling.original_context_length") or metadata.of_family("context_length")
    if factors := _factors(metadata):
        short, long = factors
        rope |= {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        rope |= {"factor": 1.0, "original_max_position_embeddings": original}
        return rope | {"attention_factor": metadata.of_family("rope.scaling.attn_factor") or 1.0}
    if kind in ("none", "longrope"):  # longrope without tensors of factors changes nothing
        return rope
    rope |= {"rope_type": kind, "factor": metadata.of_family("rope.scaling.factor")}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = original
        betas = {name: metadata.of_family(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        return rope | {name: beta for name, beta in betas.items() if beta is not None}
    if kind != "linear":
        raise ModelError(f"{metadata.name}: the rope scaling {kind} is not supported; supported: none, linear, yarn")
    return rope


def _factors(metadata: Metadata) -> tuple[list[float], list[float]] | None:
    """Returns the divisors of the frequencies for texts up to the original length, and for longer texts."""
    tensors = metadata.header.tensors
    if "rope_freqs.weight" in tensors:
        both = _floats(metadata, "rope_freqs.weight")
        return both, both
    if "rope_factors_short.weight" in tensors:
        return _floats(metadata, "rope_factors_short.weight"), _floats(metadata, "rope_factors_long.weight")
    return None


def _floats(metadata: Metadata, name: str) -> list[float]:
    tensor = metadata.tensor(name)
    if tensor.tensor_type.name != "F32":
        raise ModelError(f"{metadata.name}: {name} is stored as {tensor.tensor_type.name}; supported: F32")
    return [float(value) for value in tensor.data.reshape(-1)]


def _by_layer(metadata: Metadata, config: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that llama.cpp derives from the architecture, since files do not have them."""
    family, layers = metadata.family, config["num_hidden_layers"]
    if family == "smollm3":
        return {"no_rope_layers": [int((layer + 1) % SMOLLM3_NO_ROPE_INTERVAL != 0) for layer in range(layers)]}
    if family == "gpt-oss":
        return {"rope_parameters": rope | {"truncate": False}}
    if family not in LAYERS_OF_27B:
        return {}
    large = layers == LAYERS_OF_27B[family]
    scaled = config["hidden_size"] // config["num_attention_heads"] if large else config["head_dim"]
    if family == "gemma2":
        kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
        return {"query_pre_attn_scalar": scaled, "layer_types": kinds}
    windowed = metadata.of_family("rope.freq_base_swa") or GEMMA3_WINDOWED_ROPE_BASE
    pattern = metadata.of_family("attention.sliding_window_pattern") or GEMMA3_FULL_LAYER_INTERVAL
    kinds = ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers)]
    ropes = {"sliding_attention": {"rope_type": "default", "rope_theta": windowed}, "full_attention": rope}
    return {"query_pre_attn_scalar": scaled, "layer_types": kinds, "rope_parameters": ropes}
