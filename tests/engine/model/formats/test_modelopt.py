"""What Model Optimizer exports is read as what it stands for: NVFP4, MXFP8, and fp8 with scales of every kind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.errors import ModelError
from engine.model.config_files import raw_config
from engine.model.formats.modelopt import Modelopt, read_modelopt
from engine.model.formats.registry import format_of
from tests.engine.backends.native.measures import random
from tests.engine.model.formats.stored import read
from tests.engine.model.formats.writers import Written, fp8, mxfp8, nvfp4

CONFIG = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
SHAPE = (256, 384)


def four_axes(weight: Tensor) -> Written:
    """Writes scales of blocks as the library does: `[blocks, 1, blocks, 1]`."""
    tensors, means = fp8(weight, (128, 128), "weight_scale")
    return tensors | {"weight_scale": tensors["weight_scale"][:, None, :, None]}, means


WAYS = {
    "nvfp4": (nvfp4, "int8", 16),
    "mxfp8": (mxfp8, "fp8", 32),
    "fp8": (lambda weight: fp8(weight, None, "weight_scale"), "fp8", 384),
    "fp8 by outputs": (lambda weight: fp8(weight, (1, 384), "weight_scale"), "fp8", 384),
    "fp8 by blocks": (four_axes, "fp8", 128),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_weight_is_what_was_written(way: str, tmp_path: Path) -> None:
    """Compares to the last digit of fp32: NVFP4 has two scales, whose product is rounded."""
    write, form, group = WAYS[way]
    tensors, expected = write(random(*SHAPE, seed=1))
    found = read(tmp_path, CONFIG, tensors, SHAPE)
    assert (found.form, found.group) == (form, group)
    assert torch.equal(found.dequantized(), expected)
    assert found.meets_bytes == (way in ("fp8", "fp8 by outputs")), "FP8_PB_WO is of weights only"


def test_the_lower_bits_of_a_byte_are_the_first_number(tmp_path: Path) -> None:
    """Reads 1, -6, and fourteen zeros, by hand; the scales are 2 and 0.5."""
    tensors = {
        "weight": torch.tensor([[0xF2, *[0] * 7]], dtype=torch.uint8),
        "weight_scale": torch.tensor([[2.0]]).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor([0.5]),
    }
    found = read(tmp_path, CONFIG, tensors, (1, 16)).dequantized()
    assert found.tolist() == [[1.0, -6.0, *[0.0] * 14]]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"weight_scale_2": None}, r"lack .*up_proj\.weight_scale_2"),
        ({"weight_scale": None}, r"lack .*up_proj\.weight_scale"),
        ({"weight_scale": torch.zeros(256, 12).to(torch.float8_e4m3fn)}, r"scale has shape \[256, 12\], but"),
        ({"weight_scale_2": torch.ones(2)}, r"weight_scale_2 has shape \[2\]"),
        ({"pre_quant_scale": torch.ones(384)}, r"no place for the weight .*up_proj\.pre_quant_scale"),
    ],
)
def test_tensors_that_contradict_the_format_are_named(
    tensors: dict[str, Tensor | None], words: str, tmp_path: Path
) -> None:
    whole = {name: each for name, each in (nvfp4(random(*SHAPE, seed=1))[0] | tensors).items() if each is not None}
    with pytest.raises(ModelError, match=words):
        read(tmp_path, CONFIG, whole, SHAPE)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_algo": "W4A16_AWQ"}, "m: modelopt's quant_algo W4A16_AWQ is not supported; supported: FP8, "),
        ({"quant_algo": "NVFP4_AWQ"}, "m: modelopt's quant_algo NVFP4_AWQ is not supported"),
        ({"quantized_layers": {"a": {"quant_algo": "W8A16"}}}, "m: modelopt's quant_algo of a W8A16 is not supported"),
        ({"quantized_layers": {"a": "FP8"}}, "m: quantization_config says a FP8, which is no object"),
    ],
)
def test_what_is_not_supported_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_modelopt(CONFIG | config, "m")


def test_a_file_beside_the_config_says_it_too(tmp_path: Path) -> None:
    """It is all that versions before 0.29 wrote; the config's own word comes first."""
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 7}))
    found = raw_config(tmp_path)["quantization_config"]
    assert isinstance(format_of(raw_config(tmp_path), "m"), Modelopt) and found["kv_cache_scheme"] == "FP8"
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "aqlm"}}))
    with pytest.raises(ModelError, match="quantized with aqlm"):
        format_of(raw_config(tmp_path), "m")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"hf_quant_config\.json does not say how the weights are quantized"):
        raw_config(tmp_path)
