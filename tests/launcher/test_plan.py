"""`baton plan` on configs alone."""

import json
from pathlib import Path

import pytest

from launcher.plan import BAD_INPUT, plan

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return str(tmp_path)


def test_a_model_that_no_single_gpu_holds(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["--model", model, "--gpus", "H100,L4", "--price", "3,0.8"]) == 0
    output = capsys.readouterr().out
    assert "multiplied by 68.5 billion weights\nweights 139 GB; KV of a token 327.7 kB, of 2048 tokens 671 MB" in output
    assert "H100 (80 GB): one GPU reads the weights in 41.5 ms, and computes a token in 0.14 ms" in output
    assert "does not fit into one: 2 would" in output and "does not fit into one: 8 would" in output
    assert "$/million" in output


def test_quantized_weights_and_kv_fit_into_one(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["--model", model, "--quantization", "int4", "--kv-dtype", "fp8", "--length", "4096"]) == 0
    output = capsys.readouterr().out
    assert "weights 36.3 GB; KV of a token 168.8 kB" in output
    assert "1 GPU: KV of 198664 tokens, 48 sequences of 4096" in output and "$/million" not in output


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--gpus", "H100,GeForce"), "--gpus: 'GeForce': is none of B200"),
        (("--gpus", "H100", "--price", "3,4"), "--price: '3,4': expected 1 prices above 0"),
        (("--gpus", "H100", "--price", "0"), "--price: '0': expected"),
        (("--length", "0"), "--length"),
    ],
)
def test_bad_input_is_one_sentence(
    model: str, words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(["--model", model, *words]) == BAD_INPUT
    errors = capsys.readouterr().err
    assert error in errors and errors.count("\n") == 1


def test_a_directory_without_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["--model", str(tmp_path)]) == BAD_INPUT
    assert "has no config.json" in capsys.readouterr().err
