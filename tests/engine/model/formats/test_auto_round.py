"""AutoRound's checkpoints are GPTQ's or AWQ's, with zero points stored as the config's packing says."""

from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import ModelError
from engine.model.formats.auto_round import read_auto_round
from engine.model.formats.gptq import Gptq
from tests.engine.backends.native.measures import random
from tests.engine.model.formats.stored import NAME, read
from tests.engine.model.formats.writers import awq, gptq

CONFIG = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 64,
    "sym": False,
    "data_type": "int",
}
SHAPE = (48, 192)


@pytest.mark.parametrize(
    ("packing", "version"), [("auto_round:auto_gptq", 1), ("auto_round", 2), ("auto_round:gptqmodel", 2), (None, 1)]
)
def test_zero_points_are_stored_as_the_packing_says(packing: str | None, version: int, tmp_path: Path) -> None:
    tensors, expected = gptq(random(*SHAPE, seed=1), 4, 64, version=version)
    found = read(tmp_path, CONFIG | {"packing_format": packing}, tensors, SHAPE)
    assert torch.equal(found.dequantized(), expected)


@pytest.mark.parametrize("packing", ["auto_round:auto_awq", "auto_round:awq"])
def test_awqs_packing(packing: str, tmp_path: Path) -> None:
    tensors, expected = awq(random(*SHAPE, seed=1), 64)
    extra = {"lm_head": {"bits": 16, "data_type": "float"}}
    found = read(tmp_path, CONFIG | {"packing_format": packing, "extra_config": extra}, tensors, SHAPE)
    assert torch.equal(found.dequantized(), expected)


@pytest.mark.parametrize("name", [NAME, ".*up_proj.*", "layers\\.0\\.mlp", "model.language_model.layers.0.mlp.up_proj"])
def test_layers_may_differ_by_name_and_by_pattern(name: str, tmp_path: Path) -> None:
    tensors, expected = gptq(random(*SHAPE, seed=1), 8, 32, version=1)
    found = read(tmp_path, CONFIG | {"extra_config": {name: {"bits": 8, "group_size": 32}}}, tensors, SHAPE)
    assert found.form == "int8" and torch.equal(found.dequantized(), expected)


def test_a_layers_own_name_comes_before_patterns() -> None:
    extra = {".*mlp.*": {"bits": 8}, NAME: {"group_size": 128}, f"{NAME}s": {"group_size": 32}}
    found = read_auto_round(CONFIG | {"extra_config": extra}, "m")
    assert isinstance(found, Gptq)
    assert (found.packing_of(NAME).bits, found.packing_of(NAME).group) == (4, 128)
    assert (found.packing_of("model.layers.1.mlp.up_proj").bits, found.packing_of("model.layers.1.x").bits) == (8, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "m: auto-round with 3 bits is not supported; supported: 4, 8 bits"),
        ({"data_type": "mx_fp"}, "m: auto-round's data_type mx_fp is not supported; supported: int"),
        ({"act_bits": 8}, "m: auto-round with act_bits 8 is not supported; supported: weights alone"),
        (
            {"packing_format": "auto_round:llm_compressor"},
            "m: auto-round's packing_format auto_round:llm_compressor is",
        ),
        ({"packing_format": "auto_round:awq", "bits": 8}, "m: auto_round:awq with 8 bits is not supported"),
        (
            {"packing_format": "auto_round:awq", "extra_config": {"a": {"group_size": 32}}},
            "m: auto-round in AWQ's packing with other bits or groups for a is not supported",
        ),
        ({"extra_config": {"a": {"bits": 2}}}, "m: auto-round with 2 bits is not supported"),
        ({"extra_config": {"(": {"bits": 8}}}, "m: quantization_config has the pattern"),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_auto_round(CONFIG | change, "m")
