"""Well-known models' shapes, for engines with random weights: only their config is written to disk."""

import json
from pathlib import Path
from typing import Any

SMOLLM2_135M: dict[str, Any] = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
"""Settings of a transformers config, without the number of KV heads."""
_LLAMA: dict[str, Any] = dict(architectures=["LlamaForCausalLM"], model_type="llama", rms_norm_eps=1e-5)
_LLAMA_3: dict[str, Any] = dict(
    **_LLAMA, vocab_size=128256, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072
)


def _llama_3_rope(factor: float) -> dict[str, Any]:
    return dict(
        rope_type="llama3",
        rope_theta=500000.0,
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )


SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": dict(
        **_LLAMA_3,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        rope_parameters=_llama_3_rope(8.0),
        tie_word_embeddings=False,
    ),
    "llama-3.2-1b": dict(
        **_LLAMA_3,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        head_dim=64,
        rope_parameters=_llama_3_rope(32.0),
        tie_word_embeddings=True,
    ),
    "qwen3-0.6b": dict(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
    ),
    "tiny": dict(
        **_LLAMA,
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=40960,
        tie_word_embeddings=False,
    ),
}


def write_config(directory: Path, shape: str) -> None:
    settings = {"hidden_act": "silu", "bos_token_id": None, "eos_token_id": None, **SHAPES[shape]}
    (directory / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
