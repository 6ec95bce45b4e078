"""A GGUF model is found in a file, in parts, in a directory and in the hub's cache, and unpacked once."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from checkpoints.gguf.unpacking import unpacked
from checkpoints.model_location import locate
from contracts.errors import ModelError
from tests.checkpoints.gguf.vocabularies import CONFIG
from tests.gguf_files import add_config, add_words

WORDS = 32


def write_model(target: Path, parts: bool = False) -> list[Path]:
    """Writes a small model, in two parts if so asked; returns its files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(target, "llama", split_max_tensors=1 if parts else 0)
    add_config(writer, CONFIG)
    add_words(writer, WORDS)
    writer.add_tensor("token_embd.weight", np.zeros((WORDS, 64), np.float32))
    writer.add_tensor("output.weight", np.zeros((WORDS, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(target.parent.glob("*.gguf"))


def files_of(directory: Path) -> list[str]:
    return [Path(path).name for path in json.loads((directory / "gguf.json").read_text())["files"]]


def test_any_part_names_the_model(tmp_path: Path) -> None:
    first, second = write_model(tmp_path / "mine.gguf", parts=True)
    directory = unpacked(second)
    assert directory == unpacked(first) and directory.name == "mine"
    assert files_of(directory) == ["mine-00001-of-00002.gguf", "mine-00002-of-00002.gguf"]
    config = json.loads((directory / "config.json").read_text())
    assert config["vocab_size"] == WORDS and not config["tie_word_embeddings"], "the head is in the other part"


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first, second = write_model(tmp_path / "mine.gguf", parts=True)
    second.unlink()
    with pytest.raises(ModelError, match=r"lacks mine-00002-of-00002\.gguf, a part of the model$"):
        unpacked(first)


def test_a_file_that_changes_is_unpacked_anew(tmp_path: Path) -> None:
    (file,) = write_model(tmp_path / "mine.gguf")
    before = unpacked(file)
    file.write_bytes(file.read_bytes() + bytes(32))
    assert unpacked(file) not in (before, None) and before.is_dir()


def test_a_directory_serves_its_only_model(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "mine.gguf", parts=True)
    assert locate(str(tmp_path / "models")).name == "mine"
    write_model(tmp_path / "models" / "other.gguf")
    with pytest.raises(ModelError, match=r"has 2 GGUF models \(mine, other\.gguf\); name one$"):
        locate(str(tmp_path / "models"))


@pytest.mark.parametrize("wanted", ["Q4_K_M", "mine-Q4_K_M-00001-of-00002.gguf"])
def test_a_file_of_a_repository_is_served(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client, offline: in its cache, names are links to blobs that are called by their digests."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    for path in (repository / "refs", repository / "blobs", snapshot):
        path.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    files = write_model(tmp_path / "files" / "mine-Q4_K_M.gguf", parts=True)
    for number, file in enumerate([*files, *write_model(tmp_path / "others" / "mine-Q8_0.gguf")]):
        file.rename(repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    directory = locate(f"owner/name:{wanted}")
    assert directory.name == "mine-Q4_K_M"
    assert files_of(directory) == ["mine-Q4_K_M-00001-of-00002.gguf", "mine-Q4_K_M-00002-of-00002.gguf"]
    with pytest.raises(ModelError, match=r"has no GGUF file$"):
        locate("owner/name:Q2_K")
