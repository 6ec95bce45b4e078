"""A directory and a hub id are told apart, what is neither is refused by name, and a download shows its progress."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from checkpoints.model_location import (
    CODE_PATTERNS,
    DESCRIPTION_PATTERNS,
    _bars,
    _wanted,
    directory_of,
    downloaded,
    locate,
)
from contracts.errors import ModelError
from engine.model.checkpoint.weights import Checkpoint
from tests.hub import hub_of


def test_a_directory_and_a_hub_id_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(model), "models/mine", "./models/mine", "~/models/mine"):
        assert directory_of(name) == locate(name) == model
    assert directory_of("Qwen/Qwen3-0.6B") is None


@pytest.mark.parametrize("name", ["/no/such/place", "./nothing", "gpt2", "a/b/c", "-x/y", "a/-y", "~/nothing-here", ""])
def test_what_is_neither_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="no such directory, and a hub id looks like owner/name") as refused:
        locate(name)
    assert str(refused.value).startswith(f"--model: {name!r}: ")


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    with pytest.raises(ModelError, match=r"is a file; give the directory that holds config\.json"):
        locate(str(file))


def test_a_hub_that_cannot_be_reached_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client, offline and with an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    sentence = "^--model: 'nobody/nothing': is no directory, and cannot be fetched from the hub: [^\n]+$"
    with pytest.raises(ModelError, match=sentence):
        locate("nobody/nothing")


def test_a_download_reports_the_bytes_that_are_here(capfd: pytest.CaptureFixture[str]) -> None:
    """Bars of files are left out, and the percentage never falls when the hub learns of more to fetch."""
    seen: list[float] = []
    make = _bars(lambda stage, percent: seen.append(percent))
    files, size = make(total=4, unit="it", mininterval=0), make(total=1000, unit="B", mininterval=0)
    files.update(3)
    size.update(500)
    size.total = 2000
    size.refresh()
    size.update(1500)
    size.close()
    files.close()
    assert seen == sorted(seen) and set(seen) == {0.0, 50.0, 100.0}
    assert capfd.readouterr() == ("", "")


def test_a_part_of_a_gguf_model_brings_the_others_along() -> None:
    assert _wanted("mine-00001-of-00003.gguf") == ["mine-*-of-00003.gguf"]
    assert _wanted("mine.gguf") == ["mine.gguf"]
    assert _wanted("Q4_K_M") == ["*Q4_K_M*.gguf"]


TENSORS = {name: save({name: np.ones(4, np.float32)}) for name in ("a", "b")}
INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
SHARDS = {f"model-0000{place}-of-00002.safetensors": TENSORS[name] for place, name in enumerate("ab", 1)}
DESCRIBED = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "additional_chat_templates/rag.jinja": b"x",
}
LEFT = {
    "original/model.safetensors": TENSORS["a"],
    "original/config.json": b"{}",
    "consolidated.safetensors": TENSORS["a"],
    "consolidated.safetensors.index.json": b"{}",
    "adapter_model.safetensors": TENSORS["a"],
    "pytorch_model.bin": b"x",
    "modeling.py": b"x",
    "README.md": b"x",
}
SHARDED = {**SHARDS, "model.safetensors.index.json": INDEX.encode()}
WHOLE = {"model.safetensors": TENSORS["a"]}


@pytest.mark.parametrize("weights", [WHOLE, SHARDED, SHARDED | WHOLE], ids=["one file", "an index", "both"])
def test_what_is_downloaded_is_what_is_read(
    weights: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's own client asks a server for the files: none that repeats the model in another format is fetched."""
    read = SHARDED if SHARDED.items() <= weights.items() else WHOLE
    with hub_of({**DESCRIBED, **weights, **LEFT}, tmp_path, monkeypatch) as hub:
        assert downloaded("owner/name") is None
        directory = locate("owner/name")
        assert downloaded("owner/name") == directory and downloaded("owner/name:Q4_K_M") is None
        assert sorted(hub.fetched) == sorted({**DESCRIBED, **read})
        hub.fetched.clear()
        locate("owner/name", patterns=DESCRIPTION_PATTERNS + CODE_PATTERNS)
        assert hub.fetched == ["modeling.py"]
    assert list(Checkpoint(directory).parameters().values()) == [4 * len(set(read) - {"model.safetensors.index.json"})]


def test_who_needs_no_weights_downloads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub_of({**DESCRIBED, **SHARDED}, tmp_path, monkeypatch) as hub:
        locate("owner/name", weights=False)
        assert sorted(hub.fetched) == sorted([*DESCRIBED, "model.safetensors.index.json"])


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"consolidated.safetensors": b""}, "consolidated.safetensors has the weights under their maker's own names"),
        ({"pytorch_model.bin": b""}, "pytorch_model.bin is a pickle"),
        ({"mine-Q4_K_M.gguf": b"", "mine-Q8_0.gguf": b""}, "GGUF files one is named behind a colon"),
        ({"model.safetensors.index.json": INDEX.encode()}, "lacks model-00001-of-00002.safetensors"),
    ],
)
def test_a_repository_without_weights_says_what_it_has(
    weights: dict[str, bytes], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_of({**DESCRIBED, **weights}, tmp_path, monkeypatch), pytest.raises(ModelError) as refused:
        Checkpoint(locate("owner/name"))
    assert words in str(refused.value)
