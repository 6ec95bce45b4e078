"""Weights that cannot fit are refused by the sizes of their files, with options that would fit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from checkpoints.gguf.unpacking import GGUF_INDEX
from contracts.errors import ConfigError
from infra.config.engine import EngineOptions
from launcher.checking.memory import refuse_kv_beyond_memory, refuse_weights_beyond_memory

VALUES_PER_LAYER = 1 << 10
LAYER_COUNT = 2
WEIGHT_BYTES = 2 * LAYER_COUNT * VALUES_PER_LAYER  # bytes, in bf16


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint with parts that a worker leaves unread."""
    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(LAYER_COUNT + 1)]
    names += ["vision_tower.patch.weight", "model.visual.blocks.0.weight", "mtp.layers.0.weight"]
    save_file(
        {name: torch.zeros(VALUES_PER_LAYER, dtype=torch.bfloat16) for name in names}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": LAYER_COUNT}))
    return tmp_path


def options(**changes: object) -> EngineOptions:
    return EngineOptions(**{"cpu_backend": "native", **changes})  # type: ignore[arg-type]


def test_what_fits_is_served(model: Path) -> None:
    refuse_weights_beyond_memory(model, options(), workers=2, free_bytes=2 * WEIGHT_BYTES)
    refuse_weights_beyond_memory(model, options(dtype="fp32"), workers=1, free_bytes=2 * WEIGHT_BYTES)
    refuse_weights_beyond_memory(model, options(quantization="int4"), workers=4, free_bytes=WEIGHT_BYTES)
    refuse_weights_beyond_memory(model, options(cpu_backend="torch"), workers=9, free_bytes=WEIGHT_BYTES)


def test_a_model_that_may_fit_is_not_refused(tmp_path: Path) -> None:
    """An output layer may be tied though the config does not say so, an embedding read from pages of its file."""
    layer, embedding = (
        torch.zeros(VALUES_PER_LAYER, dtype=torch.bfloat16),
        torch.zeros(3 * VALUES_PER_LAYER, dtype=torch.bfloat16),
    )
    tensors = {"model.layers.0.x": layer, "model.embed_tokens.weight": embedding, "lm_head.weight": embedding.clone()}
    save_file(tensors, tmp_path / "model.safetensors")
    least = 2 * 4 * VALUES_PER_LAYER
    for config in ({}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        refuse_weights_beyond_memory(tmp_path, options(), workers=2, free_bytes=2 * least)
        with pytest.raises(ConfigError):
            refuse_weights_beyond_memory(tmp_path, options(), workers=2, free_bytes=2 * least - 1)


def test_workers_whose_operators_are_pytorchs_share_the_pages_of_files(model: Path) -> None:
    """Native operators know no fp16, whichever are asked for."""
    refuse_weights_beyond_memory(model, options(dtype="fp16", cpu_backend="auto"), workers=9, free_bytes=WEIGHT_BYTES)
    with pytest.raises(ConfigError):
        refuse_weights_beyond_memory(
            model, options(dtype="bf16", cpu_backend="auto"), workers=9, free_bytes=WEIGHT_BYTES
        )


def test_what_does_not_fit_is_refused_with_what_does(model: Path) -> None:
    def sentence(there: int, workers: int = 1, **changes: object) -> str:
        with pytest.raises(ConfigError) as refused:
            refuse_weights_beyond_memory(model, options(**changes), workers, there)
        return str(refused.value).removeprefix(f"--model: {str(model)!r}: ")

    both = "its weights take 4.0KiB at least in each of 2 workers, and only 8191B"
    assert sentence(2 * WEIGHT_BYTES - 1, 2).startswith(both.replace("8191B", "8.0KiB"))
    assert sentence(2 * WEIGHT_BYTES - 1, 2).endswith("; --prefill 0 --decode 1 or --quantization int4 may fit")
    half = sentence(2 * WEIGHT_BYTES - 1, dtype="fp32")
    assert half.startswith("its weights take 8.0KiB at least, and only 8.0KiB of memory are free; --dtype bf16 or")
    assert sentence(10).endswith("; a smaller model may fit")


def test_shards_are_added_up(model: Path) -> None:
    whole = model / "model.safetensors"
    whole.rename(model / "a.safetensors")
    save_file({"model.layers.0.x": torch.zeros(VALUES_PER_LAYER)}, model / "b.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse_weights_beyond_memory(model, options(), workers=1, free_bytes=WEIGHT_BYTES + 2 * VALUES_PER_LAYER)
    with pytest.raises(ConfigError):
        refuse_weights_beyond_memory(model, options(), workers=1, free_bytes=WEIGHT_BYTES + 2 * VALUES_PER_LAYER - 1)


def test_packed_numbers_stay_as_they_are(tmp_path: Path) -> None:
    save_file(
        {"model.layers.0.qweight": torch.zeros(VALUES_PER_LAYER, dtype=torch.int32)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ConfigError, match=r"take 4\.0KiB at least"):
        refuse_weights_beyond_memory(
            tmp_path, options(quantization="int4"), workers=1, free_bytes=4 * VALUES_PER_LAYER - 1
        )


def test_a_gguf_files_blocks_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(bytes(VALUES_PER_LAYER))
    (tmp_path / GGUF_INDEX).write_text(json.dumps({"files": [str(tmp_path / "model.gguf")]}))
    refuse_weights_beyond_memory(tmp_path, options(), workers=1, free_bytes=VALUES_PER_LAYER)
    with pytest.raises(ConfigError):
        refuse_weights_beyond_memory(tmp_path, options(), workers=1, free_bytes=VALUES_PER_LAYER - 1)


@pytest.mark.parametrize("option", ["kv_memory", "host_kv_memory"])
def test_kv_memory_that_workers_cannot_all_have_is_refused(option: str) -> None:
    refuse_kv_beyond_memory(options(**{option: 2 << 20}), workers=2, free_bytes=4 << 20)
    refuse_kv_beyond_memory(options(host_kv_memory=9 << 30, host_kv_directory="/disk"), workers=1, free_bytes=4 << 20)
    name = option.replace("_", "-")
    with pytest.raises(ConfigError, match=rf"^--{name}: '2\.0MiB': only 3\.0MiB of memory are free for 2 workers"):
        refuse_kv_beyond_memory(options(**{option: 2 << 20}), workers=2, free_bytes=3 << 20)
    with pytest.raises(ConfigError, match=r": '4\.0MiB': only 3\.0MiB of memory are free$"):
        refuse_kv_beyond_memory(options(**{option: 4 << 20}), workers=1, free_bytes=3 << 20)
