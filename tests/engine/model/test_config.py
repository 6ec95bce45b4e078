"""What is supported is read right; what is not is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError, ModelError
from engine.model.families.registry import SUPPORTED
from engine.model.read_config import read_config
from tests.reference import LLAMA3, SIZES, VARIANTS, YARN

LLAMA = {**SIZES, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN2 = {**SIZES, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


def write(directory: Path, config: dict[str, Any], **changes: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    return directory


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**LLAMA, "architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", *SUPPORTED]),
        ({**LLAMA, "architectures": None}, ["llama without architectures", *SUPPORTED]),
        ({**LLAMA, "architectures": ["Qwen2ForCausalLM", "LlamaForCausalLM"]}, ["Qwen2ForCausalLM, LlamaForCausalLM"]),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}}, ["quantized with gptq"]),
        ({**LLAMA, "hidden_act": "gelu"}, ["activation gelu", "silu"]),
        ({**LLAMA, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, ["dynamic", "yarn"]),
        ({**LLAMA, "rope_scaling": {"rope_type": "nonsense"}}, ["rope type nonsense", "llama3"]),
        ({**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ["config.json", "factor"]),
        (
            {**LLAMA, "head_dim": 6, "rope_theta": 1e4, "partial_rotary_factor": 0.5},
            ["3 rotated numbers"],
        ),
        ({**QWEN2, "layer_types": ["full_attention", "chunked_attention"] * 2}, ["chunked_attention"]),
        ({**QWEN2, "layer_types": ["full_attention"] * 3}, ["layer"]),
        ({**QWEN2, "layer_types": ["sliding_attention"] * 4}, ["sliding_window"]),
        ({**LLAMA, "num_key_value_heads": 3}, ["4 heads", "3 KV heads"]),
        ({**LLAMA, "head_dim": 15}, ["15"]),
        ({**LLAMA, "hidden_size": "wide"}, ["config.json is not valid"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_config(write(tmp_path, config))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "has no config.json"), ("{", "cannot be read"), ("[]", "JSON object"), ("\xff", "read")],
)
def test_a_missing_or_broken_config_is_one_sentence(content: str | None, word: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=word):
        read_config(tmp_path)


def test_a_longer_context_than_the_models_own_is_refused(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    assert read_config(tmp_path).max_model_len == 1024
    assert read_config(tmp_path, 100).max_model_len == 100
    with pytest.raises(ConfigError, match=r"max_model_len: 1025.*1024"):
        read_config(tmp_path, 1025)


def test_the_spellings_of_older_checkpoints_mean_the_same(tmp_path: Path) -> None:
    """Transformers 5 writes `rope_parameters`; older checkpoints have `rope_theta`, and `rope_scaling` with `type`."""
    (new,) = read_config(write(tmp_path, LLAMA, rope_parameters=LLAMA3)).ropes
    scaling = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    assert read_config(write(tmp_path, LLAMA, rope_theta=LLAMA3["rope_theta"], rope_scaling=scaling)).ropes == (new,)
    named = {("type" if key == "rope_type" else key): value for key, value in YARN.items()}
    assert read_config(write(tmp_path, LLAMA, rope_scaling=named)).ropes[0].type == "yarn"


def test_ends_of_text_come_from_the_generation_config(tmp_path: Path) -> None:
    write(tmp_path, LLAMA, eos_token_id=7)
    assert read_config(tmp_path).eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert read_config(tmp_path).eos_token_ids == (7, 9)


def test_windows_are_per_layer(tmp_path: Path) -> None:
    def windows(variant: str) -> tuple[int, ...]:
        VARIANTS[variant]().save_pretrained(tmp_path)
        raw = json.loads((tmp_path / "config.json").read_text())
        architecture = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "mistral": "MistralForCausalLM"}
        return read_config(write(tmp_path, raw, architectures=[architecture[raw["model_type"]]])).windows

    assert windows("qwen2-window") == (0, 0, 16, 16)
    assert windows("qwen2-unused-window") == (0, 0, 0, 0)
    assert windows("qwen3-layer-types") == (9, 0, 9, 0)
    assert windows("mistral-window") == (13, 13, 13, 13)
