"""What transformers' own code may not compute here is refused by name, before or while it is loaded."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from contracts.errors import ConfigError, ModelError
from engine.wrapped.config import read_own_config
from tests.engine.test_golden import make_engine
from tests.engine.wrapped.models import EXPERTS, SMALL, WRAPPED
from tests.reference import build_model
from tests.variants import LONGROPE


def write(directory: Path, **fields: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "mamba"}, ["MambaForCausalLM keeps a state"]),
        ({"model_type": "rwkv"}, ["RwkvForCausalLM keeps a state"]),
        ({"model_type": "jamba"}, ["JambaForCausalLM keeps a state", "linear_attention"]),
        ({"model_type": "qwen3_next", "num_hidden_layers": 4}, ["keeps a state", "linear_attention"]),
        ({"model_type": "minimax"}, ["keeps a state", "linear_attention"]),
        ({"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, ["kind conv"]),
        (
            {"model_type": "granitemoehybrid", "num_hidden_layers": 2, "layer_types": ["attention", "mamba"]},
            ["GraniteMoeHybridForCausalLM keeps a state", "linear_attention"],
        ),
        ({"model_type": "bart"}, ["encoder-decoder", "bart"]),
        ({"model_type": "t5"}, ["encoder-decoder", "t5"]),
        ({"model_type": "vit"}, ["no causal language model of type vit"]),
        ({"model_type": "vit", "auto_map": {"AutoModelForCausalLM": "a.B"}}, ["of type vit", "--trust-remote-code"]),
        ({"model_type": "glm4v_moe"}, ["more than text", "none of type glm4v_moe_text", "vision_config"]),
        ({"model_type": "fortune_teller", "auto_map": {"AutoConfig": "a.B"}}, ["auto_map", "--trust-remote-code"]),
        ({"model_type": "fortune_teller"}, ["config.json is not valid", "fortune_teller"]),
        (
            {
                "model_type": "seed_oss",
                "rope_parameters": {**LONGROPE, "original_max_position_embeddings": 32},
                "max_position_embeddings": 128,
                "head_dim": 32,
            },
            ["rope type longrope", "--max-model-len 32"],
        ),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_a_config_that_cannot_be_served_is_refused_by_name(
    fields: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as error:
        read_own_config(write(tmp_path, **fields), 0, trust_remote_code=False)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_text_longer_than_the_models_is_refused(tmp_path: Path) -> None:
    write(tmp_path, model_type="gpt2")
    assert read_own_config(tmp_path, 0, trust_remote_code=False).max_model_len == 1024
    with pytest.raises(ConfigError, match="1024"):
        read_own_config(tmp_path, 1025, trust_remote_code=False)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("bloom", {}, ["BloomForCausalLM computes attention itself"]),  # alibi
        ("mpt", {}, ["MptForCausalLM computes attention itself"]),
        ("falcon", {}, ["FalconForCausalLM computes attention itself"]),
        ("gptj", {"rotary_dim": 8}, ["GPTJForCausalLM computes attention itself"]),
        ("doge", {}, ["attention 0 (DogeAttention) adds to its scores, by a mask of its own"]),
        (
            "llama4_text",
            {**EXPERTS, "attention_chunk_size": 16, "head_dim": 16},
            ["sees other tokens than all before", "the same chunk of 16 tokens", "--max-model-len 16 serves it"],
        ),
        ("diffllama", {}, ["(DiffLlamaAttention) is called twice"]),
        ("bert", {"is_decoder": False}, ["sees other tokens than all before, or a window of them, which"]),
    ],
)
def test_attention_that_pages_cannot_have_is_refused_by_name(
    kind: str, changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    directory = build_model(tmp_path / kind, AutoConfig.for_model(kind, **deepcopy({**SMALL, **changes})))
    with pytest.raises(ModelError) as error:
        make_engine(directory, model_impl="transformers")
    assert all(word in str(error.value) for word in words), str(error.value)


def test_attention_by_chunks_is_served_up_to_a_chunk(tmp_path: Path) -> None:
    """Within the first chunk a token sees all before it."""
    config = AutoConfig.for_model(
        "llama4_text", **deepcopy({**SMALL, **EXPERTS, "head_dim": 16}), attention_chunk_size=64
    )
    directory = build_model(tmp_path / "model", config)
    assert make_engine(directory, max_model_len=64).model_config.windows == (0, 0, 0)


def test_layers_that_share_keys_and_values_store_them_once(tmp_path: Path) -> None:
    engine = make_engine(build_model(tmp_path / "model", WRAPPED["gemma4_text"]()))
    assert engine.model_config.windows == (9, 0), "of four layers"


def test_a_window_is_the_models_whatever_is_served(tmp_path: Path) -> None:
    """Workers that serve texts of other lengths pass each other KV."""
    config = WRAPPED["cohere2"]()
    config.sliding_window = 100
    directory = build_model(tmp_path / "model", config)
    specs = set()
    for longest in (64, 256):
        engine = make_engine(directory, max_model_len=longest)
        assert engine.model_config.windows == (100, 0, 100)
        specs.add(engine.pool.spec.fingerprint())
    assert len(specs) == 1
