"""A directory and a hub id are told apart, what is neither is refused by name, and a download shows its progress."""

from pathlib import Path

import pytest

from core.errors import ModelError
from core.model_location import _bars, _wanted, directory_of, locate


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


def test_a_download_reports_the_bytes_that_are_here() -> None:
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


def test_a_part_of_a_gguf_model_brings_the_others_along() -> None:
    assert _wanted(["*.json"], "mine-00001-of-00003.gguf") == ["mine-*-of-00003.gguf"]
    assert _wanted(["*.json"], "mine.gguf") == ["mine.gguf"]
    assert _wanted(["*.json"], "Q4_K_M") == ["*Q4_K_M*.gguf"]
    assert _wanted(["*.json"], None) == ["*.json"]
