"""Quantized GGUF files give the tokens of transformers on the numbers that their blocks stand for."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from checkpoints.gguf.unpacking import unpacked
from contracts.errors import ModelError, OptionError
from engine.backends.native.compiling.build import build
from tests.engine.drive import answers
from tests.engine.test_golden import BACKENDS, make_engine, make_executor
from tests.gguf_files import dequantized, write_gguf
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS

QUANTIZED = gguf.GGMLQuantizationType


def kind_of(name: str) -> Any:
    """Gives parts of a layer that are fused several types, as Q4_K_M does."""
    if ".experts." in name:
        return QUANTIZED.MXFP4
    if name.endswith(("v_proj.weight", "down_proj.weight", "w2.weight")):
        return QUANTIZED.Q8_0
    return QUANTIZED.Q4_1 if name.endswith("up_proj.weight") else QUANTIZED.Q4_0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of each test's own, in which the native operators are compiled already."""
    library = build()
    directory = tmp_path / "cache" / "baton"
    directory.mkdir(parents=True)
    (directory / library.name).symlink_to(library)
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory.parent))


@pytest.mark.parametrize("variant", ["llama", "llama-tied", "gpt-oss"])
def test_tokens_are_those_of_the_dequantized_model(variant: str, tmp_path: Path) -> None:
    """Blocks lie along inputs, so that quantizing permuted rows permutes the blocks. gpt-oss has MXFP4 experts."""
    original = build_model(tmp_path / "original", VARIANTS[variant]())
    file = write_gguf(original, tmp_path / "model.gguf", variant.removesuffix("-tied"), kind_of)
    prompts = make_prompts([1, 7, 17, 33], VARIANTS[variant]().vocab_size)
    expected = golden(dequantized(original, tmp_path / "numbers", kind_of), prompts, 8)
    for backend in BACKENDS:
        executor = make_executor(file, cpu_backend=backend)
        assert answers(executor, expected, stagger=1, chunk=13) == [each.tokens for each in expected], backend


def test_transformers_own_code_does_not_read_gguf(tmp_path: Path) -> None:
    file = write_gguf(build_model(tmp_path / "original", VARIANTS["llama"]()), tmp_path / "small.gguf", "llama")
    sentence = r"^--model-impl: 'transformers': small is a GGUF file, which only our own code reads$"
    with pytest.raises(ModelError, match=sentence):
        make_engine(file, model_impl="transformers")


@pytest.mark.parametrize("whose", ["auto", "native"])
def test_an_option_that_ours_lacks_is_told_as_it_is(whose: str, tmp_path: Path) -> None:
    """No file says such a thing today, so the config that was made of one does; transformers would find no weights."""
    file = write_gguf(build_model(tmp_path / "original", VARIANTS["llama"]()), tmp_path / "small.gguf", "llama")
    config = unpacked(file) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_act": "relu"}))
    with pytest.raises(OptionError, match=r"^small: activation relu is not supported; supported: [^;]*$"):
        make_engine(file, model_impl=whose)
