"""`baton plan` on configs alone: well-known figures, advice that simulation confirms, refusals in one sentence."""

import json
import re
from pathlib import Path

import pytest

from launcher.planning.plan import NOTHING_MEETS, PLANNED, plan
from launcher.words import BAD_INPUT_STATUS

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LOAD = ("--prompt-tokens", "1000", "--output-tokens", "50", "--seconds", "10", "--devices", "H100=8")
EXACT = ("--quantization", "none", "--kv-dtype", "auto")


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return str(tmp_path)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert plan(words) == PLANNED
    return capsys.readouterr().out


def test_the_well_known_figures_of_70_billion_weights(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of docs/foresight.md."""
    words = ("--memory", "--model", model, "--devices", "H100,L4", "--price", "H100=3,L4=0.8")
    output = planned(capsys, *words, "--length", "128", "--batch", "32", "--tokens-per-s", "10000")
    assert "multiplied by 68.5 billion weights\nweights 139 GB" in output
    assert "327.7 kB = 80 layers x 2048 values (GQA: 2 x 8 KV heads x 128) x 2 bytes" in output
    assert "H100 (80 GB): one reads the weights in 41.5 ms, and computes a token in 0.14 ms" in output
    assert output.count("does not fit into one: --tensor-parallel 4 holds it") == 1
    assert output.count("does not fit into one: --tensor-parallel 8 holds it") == 1
    assert "at 10000 tokens/s and $3/h: $0.083 a million" in output
    shares = [float(share) for share in re.findall(r"([0-9.]+)%", output.partition("L4")[0])]
    assert (shares[0], shares[5]) == (0.2, 7.4)  # batches 1 and 32: 0.23% x 32


def test_quantized_weights_and_kv_fit_into_one(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--memory", "--model", model, "--quantization", "int4", "--kv-dtype", "fp8", "--length", "4096")
    output = planned(capsys, *words)
    assert "weights 36.3 GB\nKV of a token 168.8 kB" in output and "x 1.03 bytes" in output
    assert "1 device: KV of 198664 tokens, 48 sequences of 4096" in output


def test_windows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, "model_type": "mistral", "sliding_window": 1024}))
    output = planned(capsys, "--memory", "--model", str(tmp_path), "--length", "4096")
    assert "KV of a token 81.9 kB" in output and "80 layers store 1024 of 4096 tokens" in output


def test_advice_is_the_cheapest_that_simulation_confirms(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = planned(capsys, "--model", model, *LOAD, *EXACT, "--rate", "4", "--slo-tpot-ms", "60")
    assert "price   H100 $2.25/h, 2025-12-31 (" in output
    advice = re.search(r"^advice: (\d) unsplit of H100 x (\d), 16 bits", output, re.MULTILINE)
    assert advice is not None and int(advice[1]) * int(advice[2]) < 8
    assert "cheaper by estimate: " in output
    assert (
        f"--prefill 0 --decode {advice[1]} --decode-tp {advice[2]} --slo ttft=2000ms,tpot=60ms --step-ms 30" in output
    )
    inside = f"/models/{Path(model).name}"  # a directory of this host is elsewhere in a container
    assert f"./baton up --model {model} " in output and f"./baton manifests --model {inside} " in output
    assert f"BATON_MODEL={inside} " in output and "BATON_SLO=ttft=2000ms,tpot=60ms BATON_STEP_MS=30 docker" in output


def test_a_strict_limit_on_tpot_splits_the_deployment(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    strict = ("--rate", "6", "--slo-ttft-ms", "1000", "--slo-tpot-ms", "18", "--widths", "4")
    output = planned(capsys, "--model", model, *LOAD, *EXACT, *strict)
    assert "cheaper by estimate: 1 unsplit of H100 x 4" in output and "TPOT" in output.partition("cheaper")[2]
    assert "advice: 1P1D of H100 x 4" in output and "--prefill-tp 4 --decode-tp 4" in output


def test_what_nothing_keeps_and_what_would_do(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(("--model", model, *LOAD, *EXACT, "--slo-tpot-ms", "5")) == NOTHING_MEETS
    assert "TPOT 5 ms: H100 x 8 takes" in capsys.readouterr().out
    assert plan(("--model", model, *LOAD, *EXACT, "--rate", "60")) == NOTHING_MEETS
    assert "60 requests/s need " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--devices", "H100,GeForce"), "--devices: 'GeForce': is none of B200"),
        (("--devices", "H100=none"), "--devices: 'H100=none': H100 needs a number"),
        (("--devices", "L4"), "--price: L4 has no price in the table"),
        (("--price", "L4=4"), "--price: 'L4=4': is for none of --devices H100"),
        (("--price", "H100=0"), "--price: 0.0: the price of H100 must be above 0"),
        (("--price", "3"), "--price: '3': is for none"),
        (("--prompt-tokens", ""), "--prompt-tokens: '': a plan needs lengths"),
        (("--widths", "3"), "--widths: '3': expected some of 1, 2, 4, 8"),
        (("--widths", "1", *EXACT), "--devices: 'H100': no width holds the model and"),
        (("--quantization", "int3"), "--quantization: 'int3': expected some of"),
        (("--memory", "--length", "0"), "--length"),
        (("--trace", "t.jsonl"), "--prompt-tokens: '100': cannot be used with --trace"),
        (("--json", "plan.json"), "--json: 'plan.json': no such option"),
    ],
)
def test_bad_input_is_one_sentence(
    model: str, words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--prompt-tokens", "100", "--output-tokens", "9")
    assert plan(["--model", model, *load, *words]) == BAD_INPUT_STATUS
    errors = capsys.readouterr().err
    assert error in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({**LLAMA_70B, "layer_types": ["linear_attention"] * 80}, "has layers of linear_attention"),
        ({"model_type": "llama"}, "does not say its layers"),
        (None, "has no config.json"),
    ],
)
def test_models_that_cannot_be_planned(
    tmp_path: Path, config: object, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert plan(["--memory", "--model", str(tmp_path)]) == BAD_INPUT_STATUS
    assert error in capsys.readouterr().err
