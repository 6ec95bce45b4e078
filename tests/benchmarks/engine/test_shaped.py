"""An engine in a model's shape with random weights: its tables on a CPU, its floor by hand, its weights."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.engine import shaped_table
from benchmarks.engine.__main__ import main
from benchmarks.engine.idle import Idle, KernelTime
from benchmarks.engine.shaped import HEADROOM_TOKENS, SIZES_OF_SHAPES, Decoded, Read, Shaped
from benchmarks.models.random_weights import RandomWeights
from benchmarks.models.shapes import SHAPES, write_config
from contracts.errors import ConfigError
from engine.model.read_config import read_config
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


@pytest.mark.parametrize("avx2", [True, False])
def test_its_own_format_is_the_engines(avx2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for processors that do not multiply bf16: with AVX2 native operators widen it."""
    monkeypatch.setattr("engine.device.cpu_multiplies_bf16", lambda: False)
    monkeypatch.setattr("engine.device.cpu_has_avx2", lambda: avx2)
    found = Shaped("tiny", "cpu", "auto")
    assert found.dtype == found.executor.engine.backend.dtype == (torch.bfloat16 if avx2 else torch.float32)


def test_a_batch_that_does_not_fit_is_left_out(engine: Shaped) -> None:
    assert (
        engine.decode(engine.executor.engine.pool.counts[0] // (SIZES_OF_SHAPES["tiny"].contexts[-1] // 16) + 1) is None
    )


def test_a_large_batch_is_measured_at_a_shorter_context(engine: Shaped) -> None:
    """At the first at which its KV and what it grows by fit."""
    longest, shortest = SIZES_OF_SHAPES["tiny"].contexts
    blocks = engine.executor.engine.pool.counts[0]
    most = [(blocks - 1) // -(-(context + HEADROOM_TOKENS) // 16) for context in (longest, shortest)]
    assert [engine.context_of(batch) for batch in (1, most[0], most[0] + 1, most[1])] == [
        *(longest, longest, shortest, shortest)
    ]
    assert engine.context_of(most[1] + 1) is None


def test_where_the_time_goes_is_a_table_of_bounded_size(capsys: pytest.CaptureFixture[str]) -> None:
    times = tuple(KernelTime(f"kernel {number}|" + "x" * 200, 16, 1e-3) for number in range(20))
    decoded = Decoded(256, 1024, 1.0, 1.0, None, times)
    shaped_table.kernels([decoded], [Read(8192, 1.0, 0.5, 0.6, times[:1]), Read(16, 1.0, 0.1, 0.1)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0] == "| a decode step of 256 at context 1024 | calls | µs | % of the device's time |"
    assert lines[2].startswith("| kernel 0/xxx") and lines[2].endswith("x | 2 | 125.0 | 5.0 |") and len(lines[2]) < 100
    assert lines[12] == "| 10 others | 20 | 1250.0 | 50.0 |"
    assert lines[13] == "| a prompt of 8192 tokens | calls | µs | % of the device's time |" and len(lines) == 16


def test_the_floor_is_weights_and_kv_or_operations(engine: Shaped) -> None:
    """Matrices of the tiny shape: 2 x (2 x 64 x 64 + 2 x 64 x 32 + 3 x 64 x 96) + 512 x 64 values of 4 bytes."""
    values = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) + 512 * 64
    kv = 3 * 100 * (2 * 2 * 2 * 16 * 4)
    assert engine._floor(3, 100) == pytest.approx(
        max((4 * values + kv) / engine.limits.copy, 2 * 3 * values / engine.limits.multiply)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_models_that_the_engine_takes(shape: str, tmp_path: Path) -> None:
    """Their parameters are as many as their names say, embeddings included."""
    write_config(tmp_path, shape)
    sizes = {"llama-3.1-8b": 8.03e9, "llama-3.2-1b": 1.236e9, "qwen3-0.6b": 0.596e9, "tiny": 0.127e6}
    assert RandomWeights(tmp_path, CPU, torch.float32).parameters().total() == pytest.approx(sizes[shape], rel=0.05)
    longest = max(*SIZES_OF_SHAPES[shape].prompts, *SIZES_OF_SHAPES[shape].contexts)
    assert read_config(tmp_path).max_model_len > longest


def test_random_weights_give_finite_logits_that_differ(engine: Shaped) -> None:
    logits = engine.executor.logits(list(range(50)))
    assert logits.isfinite().all() and 0.1 < float(logits.std()) < 10
    assert len(set(logits.argmax(-1).tolist())) > 25


def test_targets_are_met_or_missed() -> None:
    assert Decoded(1, 2048, 1.2, 1.0, Idle(0.0, 0.1)).met and not Decoded(1, 2048, 1.3, 1.0, None).met
    assert Read(8192, 1.0, 0.55, 0.6).met is True and Read(8192, 1.0, 0.54, 0.6).met is False
    assert Read(4096, 1.0, 0.1, 0.1).met is None


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="device"):
        Shaped("tiny", "cuda:99", "fp32")
