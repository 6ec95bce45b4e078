"""A model's figures are estimated from the headers of its files and its config, as of the models themselves."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from checkpoints.model_size import TYPICAL_SIZE, model_size


def write_model(directory: Path, config: Mapping[str, object], **shapes: tuple[int, ...]) -> Path:
    """Writes a config and the header of weights in bf16, without the weights; `__` in a name stands for a dot."""
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        begin, end = end, end + 2 * rows * columns
        header[name.replace("__", ".")] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


HEADS = {"num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 256}


def test_a_token_is_multiplied_by_all_weights_but_the_tables(tmp_path: Path) -> None:
    model = write_model(tmp_path, HEADS, model__layers__0__mlp__up=(100, 256), model__embed_tokens__weight=(999, 256))
    found = model_size(model, "auto", "none")
    assert (found.parameters, found.weights_bytes) == (100 * 256, 2 * (100 + 999) * 256)
    assert found.token_bytes == 2 * 2 * (256 / 8) * 2
    assert model_size(model, "auto", "int4").parameters == found.parameters


def test_a_token_meets_the_experts_that_it_uses(tmp_path: Path) -> None:
    """Shared experts are used by each token."""
    model = write_model(
        tmp_path,
        {**HEADS, "num_experts": 128, "num_experts_per_tok": 8, "head_dim": 128},
        model__layers__0__mlp__experts__0__up=(1600, 10),
        model__layers__0__mlp__shared_experts__up=(40, 10),
    )
    found = model_size(model, "auto", "none")
    assert (found.parameters, found.weights_bytes) == (1000 + 400, 2 * (16_000 + 400))
    assert found.token_bytes == 2 * 2 * 128 * 2


def test_latent_kv_has_no_heads(tmp_path: Path) -> None:
    model = write_model(tmp_path, {**HEADS, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, model__x=(1, 1))
    assert model_size(model, "auto", "none").token_bytes == (512 + 64) * 2


@pytest.mark.parametrize("broken", ["", "{}"])
def test_without_readable_weights_a_model_has_a_typical_size(tmp_path: Path, broken: str) -> None:
    (tmp_path / "config.json").write_text(broken)
    assert model_size(tmp_path, "auto", "none") == TYPICAL_SIZE
