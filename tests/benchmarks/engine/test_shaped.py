"""An engine in a model's shape with random weights: its tables on a CPU, its floor by hand, its weights."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.engine.__main__ import main
from benchmarks.engine.shaped import SIZES_OF_SHAPES, Shaped
from benchmarks.models.random_weights import RandomWeights
from benchmarks.models.shapes import SHAPES, write_config
from contracts.errors import ConfigError
from engine.model.checkpoint.read_config import read_config
from launcher.deployment import SERVICE_ENVIRONMENT

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def engine() -> Shaped:
    return Shaped("tiny", "cpu", "fp32")


def test_tables_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in SERVICE_ENVIRONMENT.items():  # else it starts itself again, with these
        monkeypatch.setenv(name, value)
    place = tmp_path / "found.json"
    files = ["--json", str(place)]
    options = ["--shape", "tiny", "--device", "cpu", "--dtype", "fp32", "--threads", "1", *files]
    monkeypatch.setattr(sys, "argv", ["benchmarks.engine", *options])
    assert main() == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    sizes, found = SIZES_OF_SHAPES["tiny"], json.loads(place.read_text())
    numbers = [line for line in lines if line[0][2:].isdigit()]
    assert [int(line[0][2:]) for line in numbers] == [*sizes.batches, *sizes.prompts]
    assert [each["batch"] for each in found["decode"]] == [*sizes.batches]
    assert [each["tokens"] for each in found["prompts"]] == [*sizes.prompts]
    assert all(each["seconds"] > 0 and each["floor"] > 0 and each["idle"] is None for each in found["decode"])


def test_quantized_weights_have_a_lower_floor(engine: Shaped) -> None:
    small = Shaped("tiny", "cpu", "fp32", "int4")
    assert "quantization int4, native operators" in small.header()
    assert small.executor.engine.model.weights_bytes() < engine.executor.engine.model.weights_bytes() / 2
    head = 512 * 64  # in int8; the others are 2 layers of Q and O, K and V, and three matrices
    layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96)
    assert engine.work.bytes == 4 * (layers + head) and small.work.bytes == layers * 4.5 / 8 + head


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_models_that_the_engine_takes(shape: str, tmp_path: Path) -> None:
    """Their parameters are as many as their names say, embeddings included."""
    write_config(tmp_path, shape)
    sizes = {"llama-3.1-8b": 8.03e9, "llama-3.2-1b": 1.236e9, "qwen3-0.6b": 0.596e9, "tiny": 0.127e6}
    assert RandomWeights(tmp_path, CPU, torch.float32).parameters().total() == pytest.approx(sizes[shape], rel=0.05)
    longest = max(*SIZES_OF_SHAPES[shape].prompts, *SIZES_OF_SHAPES[shape].contexts)
    assert read_config(tmp_path).max_model_len > longest


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="device"):
        Shaped("tiny", "cuda:99", "fp32")
