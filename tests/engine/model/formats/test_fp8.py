"""Weights in fp8 are read with their scales: DeepSeek's blocks, one for a weight, or one for each output."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.fp8 import read_fp8
from tests.engine.backends.native.measures import random
from tests.engine.model.formats.stored import NAME, checkpoint, read
from tests.engine.model.formats.writers import fp8

BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
WHOLE = {"quant_method": "fp8", "activation_scheme": "static"}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
SHAPE = (200, 300)
"""Of two blocks by three, of which the last ones are shorter."""


def test_blocks_share_a_scale(tmp_path: Path) -> None:
    tensors, expected = fp8(random(*SHAPE, seed=1), (128, 128))
    assert tensors["weight_scale_inv"].shape == (2, 3) and len(tensors["weight_scale_inv"].unique()) == 6
    found = read(tmp_path, BLOCKS, tensors, SHAPE)
    assert found.form == "fp8" and found.group == 128 and torch.equal(found.dequantized(), expected)
    assert found.meets_bytes


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_one_scale_is_for_all_of_a_weight(name: str, tmp_path: Path) -> None:
    tensors, expected = fp8(random(*SHAPE, seed=1), None, name)
    found = read(tmp_path, WHOLE, tensors | {"input_scale": torch.ones(())}, SHAPE)
    assert found.group == SHAPE[1] and torch.equal(found.dequantized(), expected) and found.meets_bytes
    assert torch.equal(read(tmp_path, WHOLE, tensors | {name: tensors[name].view(1)}, SHAPE).dequantized(), expected)


@pytest.mark.parametrize("config", [WHOLE, FBGEMM])
def test_a_scale_for_each_output(config: dict[str, Any], tmp_path: Path) -> None:
    tensors, expected = fp8(random(*SHAPE, seed=1), (1, SHAPE[1]), "weight_scale")
    for shape in ((200, 1), (200,)):
        scaled = tensors | {"weight_scale": tensors["weight_scale"].view(shape), "input_scale_ub": torch.ones(1)}
        assert torch.equal(read(tmp_path, config, scaled, SHAPE).dequantized(), expected)


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ({"weight_block_size": [64, 64]}, {}, r"scale_inv has shape \[2, 3\], but blocks of 64 x 64 make \[4, 5\]"),
        (
            {"weight_block_size": None},
            {},
            r"scale_inv has shape \[2, 3\], but blocks of 1 x 300 make \[200, 1\]",
        ),
        ({}, {"weight_scale_inv": None}, r"lack .*up_proj\.weight_scale_inv"),
        ({}, {"weight": None}, r"lack .*up_proj\.weight"),
        ({}, {"weight": torch.zeros(SHAPE).to(torch.float8_e5m2)}, r"weight is stored as F8_E5M2; supported: F8_E4M3"),
        ({}, {"weight": torch.zeros(4, 4).to(torch.float8_e4m3fn)}, r"weight has shape \[4, 4\]"),
    ],
)
def test_tensors_that_contradict_the_config_are_named(
    config: dict[str, Any], tensors: dict[str, Tensor | None], words: str, tmp_path: Path
) -> None:
    written, _ = fp8(random(*SHAPE, seed=1), (128, 128))
    whole = {name: tensor for name, tensor in (written | tensors).items() if tensor is not None}
    with pytest.raises(ModelError, match=words):
        checkpoint(tmp_path, BLOCKS | config, whole).weight(NAME, SHAPE)


def test_what_is_not_supported_is_named() -> None:
    for change, words in (
        ({"fmt": "e5m2"}, "m: fp8's fmt e5m2 is not supported; supported: e4m3"),
        ({"expert_dtype": "fp4"}, "m: fp8's expert_dtype fp4 is not supported"),
        ({"weight_block_size": [128]}, r"m: quantization_config says weight_block_size \[128\], which is no pair"),
    ):
        with pytest.raises(ModelError, match=words):
            read_fp8(BLOCKS | change, "m")
