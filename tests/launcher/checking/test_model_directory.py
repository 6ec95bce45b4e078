"""A model that cannot be loaded is refused before anything starts, in a sentence that names the file."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from launcher.checking.model_directory import checked

WEIGHTS = "model.safetensors"


def write_weights(path: Path, missing: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "__metadata__": {}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16 - missing))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    write_weights(directory / WEIGHTS)
    return directory


def test_a_whole_directory_is_returned_and_a_hub_id_is_not_looked_into(model: Path) -> None:
    assert checked(str(model)) == model
    assert checked("Qwen/Qwen3-0.6B") is None


@pytest.mark.parametrize("name", ["tekken.json", "tiktoken.model", "tokenizer.model"])
def test_the_tokenizer_may_be_in_another_file(name: str, model: Path) -> None:
    (model / "tokenizer.json").rename(model / name)
    assert checked(str(model)) == model


def test_shards_are_found_through_their_index(model: Path) -> None:
    (model / WEIGHTS).rename(model / "a.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
    assert checked(str(model)) == model
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors", "x": "b.safetensors"}}))
    with pytest.raises(ConfigError, match=r"lacks b\.safetensors, which its index names"):
        checked(str(model))
    index.write_text("{}")
    with pytest.raises(ConfigError, match="without a weight_map"):
        checked(str(model))


@pytest.mark.parametrize(
    ("breakage", "sentence"),
    [
        (lambda model: (model / "config.json").unlink(), r"has no config\.json"),
        (lambda model: (model / "config.json").write_text("{"), r"config\.json is not valid JSON"),
        (lambda model: (model / "config.json").write_text("[]"), r"config\.json is not a JSON object"),
        (lambda model: (model / "tokenizer.json").unlink(), r"has no tokenizer\.json"),
        (lambda model: (model / "tokenizer.json").write_bytes(b"\xff"), r"tokenizer\.json is not valid JSON"),
        (lambda model: (model / WEIGHTS).unlink(), r"has no model\.safetensors"),
        (lambda model: (model / WEIGHTS).rename(model / "w.bin"), "pickled weights are not read"),
        (
            lambda model: (model / WEIGHTS).rename(model / "consolidated.safetensors"),
            r"consolidated\.safetensors has the weights under their maker's own names",
        ),
        (
            lambda model: (model / "tokenizer.json").rename(model / "vocab.json"),
            r"tokenizer\.model either; vocab\.json is",
        ),
        (lambda model: (model / WEIGHTS).write_bytes(b"abc"), "is not a safetensors file, or was cut off"),
        (lambda model: (model / WEIGHTS).write_bytes(b""), "is not a safetensors file, or was cut off"),
        (lambda model: (model / WEIGHTS).write_bytes(struct.pack("<Q", 2) + b"[]"), "broken safetensors header"),
        (lambda model: write_weights(model / WEIGHTS, missing=3), "was cut off: 3 bytes are missing"),
    ],
)
def test_a_broken_directory_is_refused(model: Path, breakage: Callable[[Path], object], sentence: str) -> None:
    breakage(model)
    with pytest.raises(ConfigError, match=sentence) as refused:
        checked(str(model))
    assert str(refused.value).startswith(f"--model: {str(model)!r}: ")
