"""What compressed-tensors compresses is read as what it decompresses, in every format that is served."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.compressed_tensors import read_compressed_tensors
from tests.engine.backends.native.measures import random
from tests.engine.model.formats.library import parameters
from tests.engine.model.formats.stored import NAME, checkpoint, read

SHAPE = (48, 192)
INT = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
ASYMMETRIC = {"symmetric": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "int4 by groups": ("pack-quantized", INT),
    "int4 by groups with zeros": ("pack-quantized", INT | ASYMMETRIC),
    "int4 by outputs": ("pack-quantized", INT | {"strategy": "channel", "group_size": None}),
    "int4 by outputs with zeros": ("pack-quantized", INT | ASYMMETRIC | {"strategy": "channel", "group_size": None}),
    "int8 by groups": ("pack-quantized", INT | {"num_bits": 8, "group_size": 64}),
    "int8 by groups with zeros": ("pack-quantized", INT | ASYMMETRIC | {"num_bits": 8, "group_size": 64}),
    "int8 bytes by outputs": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "int8 bytes with zeros": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"} | ASYMMETRIC),
    "int8 bytes in one": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "tensor"}),
    "int8 naively": ("naive-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "fp8 by outputs": ("float-quantized", FP8),
    "fp8 in one": ("float-quantized", FP8 | {"strategy": "tensor"}),
    "fp8 by blocks": ("float-quantized", FP8 | {"strategy": "block", "block_structure": [32, 128]}),
    "fp8 naively": ("naive-quantized", FP8),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
    "mxfp8": (
        "mxfp8-quantized",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
    ),
    "mxfp4": ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}),
}


def written(format: str, args: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    """Returns a config, what the library's compressor writes of a layer, and what it makes of that in turn."""
    weight = random(*SHAPE, seed=1)
    weights = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=format)
    compressor = BaseCompressor.get_value_from_registry(format)
    tensors = compressor.compress({"weight": weight} | parameters(weight, weights), scheme)
    config = {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
    }
    return config, tensors, compressor.decompress(dict(tensors), scheme)["weight"].float()


@pytest.mark.parametrize("case", CASES)
def test_a_weight_is_what_the_library_makes_of_it(case: str, tmp_path: Path) -> None:
    """Compares bit for bit where scales have bf16's digits. NVFP4's are quotients in fp32, halved before they
    multiply: nothing is lost by that, but the library multiplies in bf16, which has 8 digits."""
    config, tensors, expected = written(*CASES[case])
    found = read(tmp_path, config, tensors, SHAPE).dequantized()
    if case == "nvfp4":
        assert ((found - expected).abs() <= expected.abs() * 2.0**-7).all()
    else:
        assert torch.equal(found, expected)


def test_zero_points_may_be_bytes(tmp_path: Path) -> None:
    """The library packs them since its version 0.10."""
    config, tensors, expected = written(*CASES["int4 by groups with zeros"])
    weight, args = random(*SHAPE, seed=1), QuantizationArgs(**CASES["int4 by groups with zeros"][1])
    zeros = parameters(weight, args)["weight_zero_point"].to(torch.int8)
    assert zeros.unique().numel() > 3
    assert torch.equal(read(tmp_path, config, tensors | {"weight_zero_point": zeros}, SHAPE).dequantized(), expected)


def test_inputs_that_were_ordered_by_activation_meet_their_own_again(tmp_path: Path) -> None:
    """The library wrote `weight_g_idx` until 2026: the codes lie in the order of inputs, the scales by group."""
    config, tensors, _ = written(*CASES["int4 by groups"])
    config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    groups = (torch.arange(192) // 32)[torch.randperm(192, generator=torch.Generator().manual_seed(0))]
    found = read(tmp_path, config, tensors | {"weight_g_idx": groups.int()}, SHAPE)
    (tmp_path / "plain").mkdir()
    plain = read(tmp_path / "plain", written(*CASES["int4 by groups"])[0], tensors, SHAPE)
    codes = plain.values.int() - 8
    assert found.order is not None
    assert torch.equal(found.dequantized(), codes * tensors["weight_scale"][:, groups])


def test_names_come_before_linear_and_each_group_has_its_own_format(tmp_path: Path) -> None:
    config, tensors, expected = written(*CASES["fp8 by outputs"])
    other = json.loads(QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**INT)).model_dump_json())
    own = config["config_groups"]["group_0"]
    for targets in ([NAME], ["re:.*up_proj"], ["re:.*down_proj", "re:.*layers.0.*"]):
        config["format"] = "mixed-precision"
        config["config_groups"] = {
            "a": other | {"format": "pack-quantized"},
            "b": own | {"targets": targets, "format": "float-quantized"},
        }
        assert torch.equal(read(tmp_path, config, tensors, SHAPE).dequantized(), expected)


@pytest.mark.parametrize(
    ("case", "inputs", "expected"),
    [
        ("int8 bytes by outputs", {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}, True),
        ("int8 bytes by outputs", {"num_bits": 8, "type": "int", "dynamic": True} | ASYMMETRIC, False),
        ("int8 bytes by outputs", {"num_bits": 8, "type": "float", "dynamic": True}, False),
        ("int8 bytes in one", {"num_bits": 4, "type": "int", "dynamic": True}, False),
        ("int8 bytes in one", None, False),
        ("fp8 by outputs", {"num_bits": 8, "type": "float", "dynamic": False}, True),
        ("fp8 by blocks", None, False),
        ("int8 by groups", {"num_bits": 8, "type": "int", "dynamic": True}, False),
    ],
)
def test_who_was_made_for_inputs_in_bytes(
    case: str, inputs: dict[str, Any] | None, expected: bool, tmp_path: Path
) -> None:
    config, tensors, _ = written(*CASES[case])
    config["config_groups"]["group_0"]["input_activations"] = inputs
    assert read(tmp_path, config, tensors, SHAPE).meets_bytes == expected


def test_scales_of_activations_and_kv_may_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, tensors, expected = written(*CASES["int8 bytes in one"])
    caplog.set_level("INFO")
    config["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": False}
    others = ("input_scale", "input_zero_point", "k_scale", "v_scale")
    found = read(tmp_path, config, tensors | {name: torch.ones(1) for name in others}, SHAPE)
    assert torch.equal(found.dequantized(), expected)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "its kv_cache_scheme is ignored" in line


@pytest.mark.parametrize(
    ("case", "weights", "tensors", "words"),
    [
        ("int4 by groups", {"group_size": 64}, {}, r"scale has shape \[48, 6\], but blocks of 1 x 64 make \[48, 3\]"),
        ("int4 by groups", {"num_bits": 8}, {}, r"weight_packed has shape \[48, 24\], but the config says \[48, 48\]"),
        ("int4 by groups", ASYMMETRIC, {}, r"lack .*up_proj\.weight_zero_point"),
        ("int4 by groups", {"actorder": "group"}, {}, r"lack .*up_proj\.weight_g_idx"),
        ("int4 by groups", {}, {"weight_scale": None}, r"lack .*up_proj\.weight_scale"),
        ("int4 by groups", {}, {"weight_packed": None}, r"lack .*up_proj\.weight_packed"),
        ("int8 bytes by outputs", ASYMMETRIC, {}, r"lack .*up_proj\.weight_zero_point"),
        ("int8 bytes by outputs", {}, {"weight": None}, r"lack .*up_proj\.weight"),
        ("int8 bytes with zeros", {}, {"weight_zero_point": torch.zeros(3, dtype=torch.int8)}, r"has shape \[3\], but"),
        ("fp8 by outputs", {"type": "int"}, {}, r"float-quantized of type int is not supported; supported: float"),
        ("nvfp4", {}, {"weight_global_scale": None}, r"lack .*up_proj\.weight_global_scale"),
        ("mxfp4", {}, {"weight_scale": torch.zeros(48, 3, dtype=torch.uint8)}, r"weight_scale has shape \[48, 3\]"),
    ],
)
def test_tensors_that_contradict_the_config_are_named(
    case: str, weights: dict[str, Any], tensors: dict[str, Tensor | None], words: str, tmp_path: Path
) -> None:
    config, found, _ = written(*CASES[case])
    config["config_groups"]["group_0"]["weights"] |= weights
    whole = {name: tensor for name, tensor in (found | tensors).items() if tensor is not None}
    with pytest.raises(ModelError, match=words):
        checkpoint(tmp_path, config, whole).weight(NAME, SHAPE)


def test_a_layer_that_no_target_names_is_named(tmp_path: Path) -> None:
    config, tensors, _ = written(*CASES["int4 by groups"])
    config["config_groups"]["group_0"]["targets"] = ["re:.*down_proj"]
    with pytest.raises(ModelError, match=r"up_proj is quantized, but no target of quantization_config names it"):
        checkpoint(tmp_path, config, tensors).weight(NAME, SHAPE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"format": "marlin-24"},
            "m: compressed-tensors' format marlin-24 is not supported; supported: pack-quantized",
        ),
        ({"format": "mxfp6-pack-quantized"}, "m: compressed-tensors' format mxfp6-pack-quantized is not supported"),
        ({"format": "dense"}, "m: compressed-tensors' format dense is not supported"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config .* with the format sparse-24-bitmask"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "m: compressed-tensors with a transform_config is not"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "m: the config group W4A16 of compressed-tensors does not say"),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, Any], words: str) -> None:
    config = {"format": "pack-quantized", "config_groups": {"a": {"targets": ["Linear"], "weights": INT}}}
    with pytest.raises(ModelError, match=words):
        read_compressed_tensors(config | change, "m")


@pytest.mark.parametrize(
    ("format", "weights", "words"),
    [
        ("pack-quantized", {"num_bits": 3}, "m: pack-quantized with 3 bits is not supported; supported: 4, 8 bits"),
        ("pack-quantized", {"strategy": "token"}, "m: pack-quantized by token is not supported; supported: tensor"),
        ("pack-quantized", {"group_size": None}, "m: quantization_config says group_size None"),
        ("float-quantized", FP8 | ASYMMETRIC, "m: float-quantized with zero points is not supported"),
        ("float-quantized", FP8 | {"strategy": "block"}, "m: quantization_config says block_structure None"),
        (
            "int-quantized",
            {"num_bits": 8, "actorder": "group"},
            "m: int-quantized with actorder group is not",
        ),
    ],
)
def test_weights_that_are_not_supported_are_named(format: str, weights: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_compressed_tensors({"format": format, "config_groups": {"a": {"weights": INT | weights}}}, "m")
