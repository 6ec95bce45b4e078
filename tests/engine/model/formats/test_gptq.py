"""GPTQ's tensors are read as the weights that they mean, whatever the version, the group and the order of inputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.gptq import read_gptq
from tests.engine.backends.native.measures import random
from tests.engine.model.formats.stored import NAME, checkpoint, read
from tests.engine.model.formats.writers import gptq, packed

CONFIG: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
V1: dict[str, str] = {}  # is what a config without the word means
V2 = {"checkpoint_format": "gptq_v2"}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("desc_act", [False, True])
def test_a_weight_is_what_was_written(bits: int, group: int, symmetric: bool, desc_act: bool, tmp_path: Path) -> None:
    """Compares bit for bit, since fp32 holds an fp16 scale times 8 bits.

    The last group of 160 inputs may be shorter.
    """
    weight = random(48, 160, seed=bits)
    for version, words in ((1, V1), (2, V2)):
        tensors, expected = gptq(weight, bits, group, version=version, symmetric=symmetric, desc_act=desc_act)
        config = CONFIG | words | {"bits": bits, "group_size": group, "desc_act": desc_act}
        found = read(tmp_path, config, tensors, (48, 160))
        assert torch.equal(found.dequantized(), expected)
        assert (found.order is not None) == (desc_act and group > 0)
        assert found.offsets is None or not (symmetric and bits == 8), "int8 with zeros of 128 needs no offsets"


def by_hand(zeros: list[int], version: dict[str, str], tmp_path: Path, bits: int = 4) -> list[float]:
    """Returns what eight outputs, whose codes are all 5, and whose packed zero points are given, are read as."""
    tensors = {
        "qweight": packed(torch.full((8, 32), 5), bits).t(),
        "qzeros": packed(torch.tensor([zeros]), bits),
        "scales": torch.ones(1, 8, dtype=torch.float16),
    }
    found: list[float] = (
        read(tmp_path, CONFIG | version | {"bits": bits}, tensors, (8, 32)).dequantized()[:, 0].tolist()
    )
    return found


def test_version_1_has_zero_points_less_one(tmp_path: Path) -> None:
    for bits in (4, 8):
        assert by_hand([0, 1, 2, 3, 4, 5, 6, 7], V1, tmp_path, bits) == [4, 3, 2, 1, 0, -1, -2, -3]


def test_version_2_has_zero_points_as_they_are(tmp_path: Path) -> None:
    for bits in (4, 8):
        assert by_hand([0, 1, 2, 3, 4, 5, 6, 7], V2, tmp_path, bits) == [5, 4, 3, 2, 1, 0, -1, -2]


def test_a_zero_point_of_0_borrows_from_the_next_in_version_1(tmp_path: Path) -> None:
    """GPTQModel subtracts from whole words, so that zeros 0, 3 are stored as 15, 1."""
    assert by_hand([15, 1, 4, 4, 4, 4, 4, 4], V1, tmp_path) == [5, 2, 0, 0, 0, 0, 0, 0]


def test_inputs_are_sorted_by_group_and_meet_their_own_again(tmp_path: Path) -> None:
    """Inputs 0, 2, 4 … are of group 1, the odd ones of group 0; group 1's scale is twice group 0's."""
    codes = torch.arange(64).repeat(8, 1) % 16
    groups = torch.tensor([1, 0] * 32, dtype=torch.int32)
    tensors = {
        "qweight": packed(codes, 4).t(),
        "qzeros": packed(torch.zeros(2, 8), 4),
        "scales": torch.tensor([[1.0] * 8, [2.0] * 8]).half(),
        "g_idx": groups,
    }
    found = read(tmp_path, CONFIG | V2 | {"desc_act": True}, tensors, (8, 64))
    assert found.order is not None and found.order.tolist() == [*range(1, 64, 2), *range(0, 64, 2)]
    assert torch.equal(found.values[0, :3], torch.tensor([1, 3, 5], dtype=torch.uint8))
    assert torch.equal(found.dequantized(), codes * (groups + 1).float())


def test_layers_that_dynamic_names_are_packed_as_it_says(tmp_path: Path) -> None:
    weight = random(16, 64, seed=1)
    dynamic = {r"+:.*\.up_proj": {"bits": 8, "group_size": 64}, r".*\.up_proj": {"bits": 4}, r"-:.*\.down_proj": {}}
    tensors, expected = gptq(weight, 8, 64, version=1)
    found = read(tmp_path, CONFIG | {"dynamic": dynamic}, tensors, (16, 64))
    assert found.form == "int8" and torch.equal(found.dequantized(), expected)


def test_biases_that_nobody_has_may_stay_if_they_are_zeros(tmp_path: Path) -> None:
    tensors, _ = gptq(random(16, 64, seed=1), 4, 32, version=1)
    for bias in (torch.zeros(16), torch.ones(16)):
        opened = checkpoint(tmp_path, CONFIG, tensors | {"bias": bias})
        opened.weight(NAME, (16, 64))
        if bias.any():
            with pytest.raises(ModelError, match=r"no place for the weight .*up_proj\.bias"):
                opened.refuse_unused()
        else:
            opened.refuse_unused()


def test_how_a_checkpoint_is_read_is_in_its_digest(tmp_path: Path) -> None:
    tensors, _ = gptq(random(16, 64, seed=1), 4, 32, version=1)
    told: list[dict[str, Any]] = [{}, V2, {"group_size": 64}, {"dynamic": {"a": {"bits": 8}}}]
    assert len({checkpoint(tmp_path, CONFIG | each, tensors).digest() for each in told}) == len(told)


BROKEN: list[tuple[dict[str, Any], dict[str, Tensor | None], str]] = [
    ({"group_size": 64}, {}, r"scales has shape \[3, 16\], hence 3 groups, .* group_size 64 makes 2 of 96 inputs"),
    ({}, {"qzeros": None}, r"lack .*up_proj\.qzeros"),
    ({}, {"scales": None}, r"lack .*up_proj\.scales"),
    ({}, {"qweight": None}, r"lack .*up_proj\.qweight"),
    ({"desc_act": True}, {"g_idx": None}, r"lack .*up_proj\.g_idx"),
    ({"desc_act": True}, {"g_idx": torch.ones(96, dtype=torch.int32)}, r"g_idx does not have 32 inputs in every group"),
    ({}, {"scales": torch.ones(3, 8).half()}, r"scales has shape \[3, 8\], but the config says \[3, 16\]"),
    ({"bits": 8}, {}, r"qweight has shape \[12, 16\], but the config says \[24, 16\]"),
    ({}, {"qzeros": torch.zeros(3, 2)}, r"qzeros is stored as F32; supported: I32"),
]


@pytest.mark.parametrize(("config", "tensors", "words"), BROKEN)
def test_tensors_that_contradict_the_config_are_named(
    config: dict[str, Any], tensors: dict[str, Tensor | None], words: str, tmp_path: Path
) -> None:
    written, _ = gptq(random(16, 96, seed=1), 4, 32, version=1)
    whole = {name: tensor for name, tensor in (written | tensors).items() if tensor is not None}
    with pytest.raises(ModelError, match=words):
        checkpoint(tmp_path, CONFIG | config, whole).weight(NAME, (16, 96))


def test_sizes_that_do_not_fill_words_are_named(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path, CONFIG, {"qweight": torch.zeros(1, 8, dtype=torch.int32)})
    with pytest.raises(ModelError, match=r"up_proj has 12 inputs, which cannot be divided by 8"):
        opened.weight(NAME, (8, 12))
    with pytest.raises(ModelError, match=r"up_proj has 12 outputs, which cannot be divided by 8"):
        opened.weight(NAME, (12, 8))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "m: GPTQ with 3 bits is not supported; supported: 4, 8 bits"),
        ({"bits": "four"}, "m: quantization_config says bits four, which is no whole number"),
        ({"group_size": 0}, "m: quantization_config says group_size 0; it is a number of inputs, or -1"),
        ({"checkpoint_format": "marlin"}, "m: GPTQ's checkpoint_format marlin is not supported"),
        ({"is_marlin_format": True}, "m: GPTQ's checkpoint_format marlin is not supported"),
        ({"pack_dtype": "int64"}, "m: GPTQ's pack_dtype int64 is not supported"),
        ({"dynamic": {"a(": {}}}, r"m: quantization_config has the pattern a\(, which is none"),
        ({"dynamic": {"a": {"bits": 2}}}, "m: GPTQ with 2 bits is not supported"),
        ({"dynamic": {"a": {"adapter": {}}}}, "m: GPTQ's dynamic a has an adapter"),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_gptq(CONFIG | change, "m")
