"""`baton pull` fetches from a hub what `baton models` then lists, with the format that its files have."""

import json
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.commands.models import checkpoint_format
from launcher.options import DEMO_MODEL
from tests.hub import hub_of

CONFIG = {"model_type": "llama", "torch_dtype": "bfloat16"}
AWQ = {**CONFIG, "quantization_config": {"quant_method": "awq"}}


def files() -> dict[str, bytes]:
    demo = {path.name: path.read_bytes() for path in Path(DEMO_MODEL).iterdir()}
    return {"config.json": demo["config.json"], "model.safetensors": demo["model.safetensors"], "README.md": b"read"}


def test_a_pulled_model_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "hub"
    with hub_of(files(), cache, monkeypatch) as hub:
        assert main(["models"]) == 0
        assert capsys.readouterr().out == f"{cache} has no models; ./baton pull NAME downloads one\n"
        assert main(["pull", "owner/name"]) == 0
        assert sorted(hub.fetched) == ["config.json", "model.safetensors"]
        said = capsys.readouterr().out.splitlines()
        assert said[0].split() == ["owner/name", "downloading", "0%"]
        assert said[-1].startswith(f"owner/name is in {cache}/") and said[-1].endswith("--model owner/name serves it")
        assert main(["models"]) == 0
        header, line = capsys.readouterr().out.splitlines()
        assert header.split("  ")[0] == "MODEL"
        assert line.startswith("owner/name  3.6MiB  safetensors, ")


def test_a_model_that_the_hub_lacks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with hub_of({}, tmp_path / "hub", monkeypatch):
        assert main(["pull", "another/name"]) == 1
    assert "'another/name': is no directory, and cannot be fetched from the hub" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "NAME: expected one name: ./baton pull owner/name"),
        (["a/b", "c/d"], "NAME: 'a/b c/d': expected one name: ./baton pull owner/name"),
        ([DEMO_MODEL], f"NAME: '{DEMO_MODEL}': is on this host already: {DEMO_MODEL}"),
        (["name"], "NAME: 'name': there is no such directory, and a hub id looks like owner/name"),
    ],
)
def test_a_name_that_cannot_be_pulled_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", *words]) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"


@pytest.mark.parametrize(
    ("config", "others", "written"),
    [
        (CONFIG, ["model.safetensors"], "safetensors, bfloat16"),
        (CONFIG, [], "safetensors, bfloat16, incomplete"),
        (AWQ, ["model.safetensors"], "safetensors, awq over bfloat16"),
        ({"text_config": {"dtype": "float16"}}, ["model.safetensors"], "safetensors, float16"),
        ([], ["m-Q4_K_M.gguf"], "GGUF: m-Q4_K_M"),
        (None, [], "no config.json"),
    ],
)
def test_formats(tmp_path: Path, config: object, others: list[str], written: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    for name in others:
        (tmp_path / name).touch()
    assert checkpoint_format(tmp_path) == written
