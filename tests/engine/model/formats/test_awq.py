"""AWQ's tensors are read as the weights that they mean; what else is called AWQ is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.awq import read_awq
from tests.engine.backends.native.measures import random
from tests.engine.model.formats.stored import NAME, checkpoint, read
from tests.engine.model.formats.writers import awq

CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize("group", [32, 64, 128])
def test_a_weight_is_what_was_written(group: int, tmp_path: Path) -> None:
    """Compares bit for bit, since fp32 holds an fp16 scale times 4 bits."""
    tensors, expected = awq(random(48, 256, seed=group), group)
    found = read(tmp_path, CONFIG | {"group_size": group}, tensors, (48, 256))
    assert found.form == "int4" and found.group == group and torch.equal(found.dequantized(), expected)


def test_a_weight_is_what_compressed_tensors_makes_of_it(tmp_path: Path) -> None:
    """Uses its converter of AutoAWQ's checkpoints, then its own format, in our reader of that."""
    tensors, _ = awq(random(48, 256, seed=1), 32)
    converter = AutoAWQConverter(group_size=32, ignore=())
    converted = converter.process({f"{NAME}.{end}": tensor.contiguous() for end, tensor in tensors.items()})
    theirs = converter.update_config(None)
    assert theirs is not None
    other = {name.removeprefix(f"{NAME}."): tensor for name, tensor in converted.items()}
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    expected = read(tmp_path / "theirs", theirs.model_dump(mode="json"), other, (48, 256))
    assert torch.equal(read(tmp_path / "ours", CONFIG, tensors, (48, 256)).dequantized(), expected.dequantized())


def test_a_word_has_outputs_0_2_4_6_1_3_5_7(tmp_path: Path) -> None:
    """The word 0x76543210 has codes 0 1 2 … from its lowest bits up, so output 1 has the code 4, and output 7 has 7."""
    tensors = {
        "qweight": torch.full((32, 1), 0x76543210, dtype=torch.int32),
        "qzeros": torch.zeros(1, 1, dtype=torch.int32),
        "scales": torch.ones(1, 8, dtype=torch.float16),
    }
    assert read(tmp_path, CONFIG, tensors, (8, 32)).dequantized()[:, 5].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    tensors = tensors | {"qweight": tensors["qzeros"].expand(32, 1), "qzeros": tensors["qweight"][:1]}
    assert read(tmp_path, CONFIG, tensors, (8, 32)).dequantized()[:, 5].tolist() == [0, -4, -1, -5, -2, -6, -3, -7]


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ({"group_size": 64}, {}, r"scales has shape \[4, 16\], hence 4 groups, .* group_size 64 makes 2 of 128 inputs"),
        ({}, {"qzeros": None}, r"lack .*up_proj\.qzeros"),
        ({}, {"scales": None}, r"lack .*up_proj\.scales"),
        ({}, {"qweight": None}, r"lack .*up_proj\.qweight"),
        ({}, {"qzeros": torch.zeros(3, 2, dtype=torch.int32)}, r"qzeros has shape \[3, 2\], .* says \[4, 2\]"),
    ],
)
def test_tensors_that_contradict_the_config_are_named(
    config: dict[str, Any], tensors: dict[str, Tensor | None], words: str, tmp_path: Path
) -> None:
    written, _ = awq(random(16, 128, seed=1), 32)
    whole = {name: tensor for name, tensor in (written | tensors).items() if tensor is not None}
    with pytest.raises(ModelError, match=words):
        checkpoint(tmp_path, CONFIG | config, whole).weight(NAME, (16, 128))


def test_sizes_that_do_not_fill_words_or_groups_are_named(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path, CONFIG, awq(random(16, 128, seed=1), 32)[0])
    with pytest.raises(ModelError, match=r"up_proj has 12 outputs, which cannot be divided by 8"):
        opened.weight(NAME, (12, 128))
    short = {"qweight": torch.zeros(40, 2, dtype=torch.int32), "scales": torch.ones(2, 16).half()}
    opened = checkpoint(tmp_path, CONFIG, short)
    with pytest.raises(ModelError, match=r"up_proj has 40 inputs, which cannot be divided by 32"):
        opened.weight(NAME, (16, 40))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "gemv"}, "m: AWQ's version gemv is not supported; supported: gemm"),
        ({"version": "marlin"}, "m: AWQ's version marlin is not supported"),
        ({"version": None, "checkpoint_format": "gemv_fast"}, "m: AWQ's version gemv_fast is not supported"),
        ({"backend": "llm-awq"}, "m: AWQ's backend llm-awq is not supported"),
        ({"bits": 8}, "m: AWQ with 8 bits is not supported; supported: 4 bits"),
        ({"group_size": None}, "m: quantization_config says group_size None, which is no whole number"),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_awq(CONFIG | change, "m")
