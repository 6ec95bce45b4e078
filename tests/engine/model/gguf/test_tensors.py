"""A GGUF file of each architecture has the config and the numbers of the model that it was made of."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file

from checkpoints.gguf.unpacking import unpacked
from engine.model.checkpoint.read_config import read_config
from engine.model.config import ModelConfig
from engine.model.gguf.tensors import in_halves
from engine.model.open_checkpoint import open_checkpoint
from tests.gguf_files import interleaved, separated, write_gguf
from tests.reference import build_model
from tests.variants import VARIANTS

SERVED = {
    "llama": "llama",
    "llama-multi-query": "llama",
    "llama-biases": "llama",
    "llama-tied": "llama",
    "llama-linear-rope": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "granite": "granite",
    "smollm3": "smollm3",
    "olmo2": "olmo2",
    "qwen2-moe": "qwen2moe",
    "qwen3-moe": "qwen3moe",
    "gpt-oss": "gpt-oss",
}
"""The golden tests' models, by the architecture that GGUF calls them."""
IMPLIED: dict[str, dict[str, Any]] = {
    "gemma2": {
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 48,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma3": {"query_pre_attn_scalar": 48, "layer_types": ["sliding_attention"] * 4},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "qwen3-moe": {"norm_topk_prob": True},
}
"""What files do not say, as llama.cpp has it."""


def original_of(variant: str, directory: Path) -> Path:
    config = VARIANTS[variant]().to_dict() | IMPLIED.get(variant, {})
    return build_model(directory, type(VARIANTS[variant]()).from_dict(config))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what is unpacked out of this user's own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def renamed(config: ModelConfig) -> ModelConfig:
    return structs.replace(config, name="", eos_token_ids=())


@pytest.mark.parametrize("variant", SERVED)
def test_config_and_weights_are_those_of_the_original(variant: str, tmp_path: Path) -> None:
    original = original_of(variant, tmp_path / "original")
    directory = unpacked(write_gguf(original, tmp_path / "model.gguf", SERVED[variant]))
    found, whole = (structs.asdict(renamed(read_config(each))) for each in (directory, original))
    assert {key: value for key, value in found.items() if value != whole[key]} == {}
    checkpoint, expected = open_checkpoint(directory), separated(load_file(original / "model.safetensors"))
    for name, tensor in expected.items():
        name = name.removesuffix(".weight") if "sinks" in name else name
        # Gemma's files have norms + 1, which is less than 4 and rounded to 24 bits; taking 1 off again is exact.
        added = SERVED[variant].startswith("gemma") and name.endswith("norm.weight")
        found_tensor = checkpoint.tensor(name, tuple(tensor.shape))
        torch.testing.assert_close(found_tensor, tensor, rtol=0, atol=2**-23 if added else 0)
    checkpoint.refuse_unused()


def test_rows_of_queries_and_keys_are_put_in_order() -> None:
    """Two heads of six rows: llama.cpp's converter has rows i and i + 3 of a head side by side."""
    rows = torch.arange(12.0)[:, None]
    theirs = torch.from_numpy(interleaved(rows.numpy(), 2)).reshape(12, 1)
    assert theirs.flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert torch.equal(in_halves(theirs, 2), rows)


def test_an_embedding_of_blocks_is_unpacked(tmp_path: Path) -> None:
    original = original_of("llama", tmp_path / "original")
    file = write_gguf(original, tmp_path / "model.gguf", "llama", lambda name: gguf.GGMLQuantizationType.Q8_0)
    checkpoint = open_checkpoint(unpacked(file))
    whole = load_file(original / "model.safetensors")["model.embed_tokens.weight"]
    blocks = gguf.quants.quantize(whole.numpy(), gguf.GGMLQuantizationType.Q8_0)
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))
    assert torch.equal(checkpoint.tensor("model.embed_tokens.weight", (320, 128)), expected)
    counts = checkpoint.parameters()
    assert (
        counts["int8"]
        == sum(part.numel() for part in load_file(original / "model.safetensors").values()) - (counts[None])
    )
    assert counts[None] == whole.numel() + 9 * 128, "the embedding, and two norms a layer and one behind"
