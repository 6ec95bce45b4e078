"""MXFP4 weights are the numbers that transformers makes of them, and a model of such experts gives its tokens."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from contracts.errors import ModelError
from engine.model.mxfp4 import unpacked
from tests.engine.drive import answers
from tests.engine.test_golden import make_executor
from tests.reference import Golden, build_model, golden, make_prompts
from tests.variants import VARIANTS

NEW_TOKENS = 8
PRODUCTS = ("gate_up_proj", "down_proj")


def random_blocks(shape: tuple[int, ...], least: int, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Blocks and scales of a weight `[experts, out, in]`."""
    generator = torch.Generator().manual_seed(seed)
    experts, outputs, inputs = shape
    blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(least, most, blocks.shape[:3], generator=generator, dtype=torch.uint8)


def test_numbers_equal_transformers() -> None:
    """With scales from the smallest normal number of bf16 to the largest."""
    blocks, scales = random_blocks((3, 10, 96), 3, 250, 0)
    expected = convert_moe_packed_tensors(blocks, scales).transpose(1, 2)
    for expert in range(3):
        found = unpacked(blocks[expert], scales[expert]).dequantized()
        assert torch.equal(found, expected[expert].float())


def test_a_block_is_read_low_bits_first() -> None:
    """Compares with codes 0 … 15 by hand, of a block with a scale of 2, in the order of the specification's table."""
    blocks = torch.tensor([[[low | (low + 1) << 4 for low in range(0, 16, 2)] * 2]], dtype=torch.uint8)
    ladder = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    codes = [*ladder, *(-value for value in ladder)]
    assert unpacked(blocks, torch.tensor([[128]], dtype=torch.uint8)).dequantized().tolist() == [codes * 2]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Golden]]:
    """A model with packed experts, and the tokens of one that has transformers' numbers for them."""
    plain = build_model(tmp_path_factory.mktemp("gpt-oss") / "plain", VARIANTS["gpt-oss"]())
    tensors = load_file(plain / "model.safetensors")
    others: dict[str, Tensor] = {}
    for number, name in enumerate(sorted(tensors)):
        if name.endswith(PRODUCTS):
            experts, inputs, outputs = tensors[name].shape
            blocks, scales = random_blocks((experts, outputs, inputs), 120, 124, number)
            tensors[name] = convert_moe_packed_tensors(blocks, scales).float()
            others |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            others[name] = tensors[name]
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    expected = golden(plain, make_prompts([1, 9, 30, 44], 320), NEW_TOKENS)
    directory = plain.parent / "packed"
    directory.mkdir()
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(others, directory / "model.safetensors", metadata={"format": "pt"})
    return directory, expected


def test_packed_experts_give_transformers_tokens(packed: tuple[Path, list[Golden]]) -> None:
    directory, expected = packed
    executor = make_executor(directory)
    assert answers(executor, expected) == [each.tokens for each in expected]


@pytest.mark.parametrize(
    ("name", "put", "words"),
    [
        ("gate_up_proj_scales", None, ["lack", "mlp.experts.gate_up_proj_scales"]),
        ("down_proj_blocks", None, ["lack", "mlp.experts.down_proj"]),
        ("down_proj_blocks", torch.zeros(6, 128, 5, 16, dtype=torch.uint8), ["[6, 128, 5, 16]", "[6, 128, 6, 16]"]),
        ("down_proj_scales", torch.zeros(6, 128, 6), ["down_proj_scales", "F32", "U8"]),
        ("gate_up_proj", torch.zeros(6, 128, 384), ["no place", "mlp.experts.gate_up_proj"]),
        ("down_proj_bias", torch.zeros(6, 128, dtype=torch.uint8), ["down_proj_bias", "U8", "BF16"]),
    ],
)
def test_packed_experts_that_are_broken_are_named(
    name: str, put: Tensor | None, words: list[str], packed: tuple[Path, list[Golden]], tmp_path: Path
) -> None:
    tensors = load_file(packed[0] / "model.safetensors")
    whole = f"model.layers.1.mlp.experts.{name}"
    tensors.pop(whole, None)
    if put is not None:
        tensors[whole] = put
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((packed[0] / "config.json").read_bytes())
    with pytest.raises(ModelError) as caught:
        make_executor(tmp_path)
    assert all(word in str(caught.value) for word in words), caught.value
