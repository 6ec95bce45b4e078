"""`baton simulate` on a config alone: the report of `baton bench`, and refusals in one sentence."""

import json
from pathlib import Path

import msgspec
import pytest

from launcher.bench.bench import bench
from launcher.bench.calibration import CalibratedWorker, Calibration
from launcher.bench.rates import BAD_INPUT
from launcher.simulate import simulate
from pricing.steps import StepCosts
from workloads.report import Report

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LOAD = ["--rate", "4", "--seconds", "4", "--prompt-tokens", "uniform:100-900", "--output-tokens", "20"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return str(tmp_path)


def test_reports_are_those_of_bench(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("fast.json", "slow.json")]
    assert simulate(["--model", model, "--gpu", "H100", *LOAD, "--json", paths[0]]) == 0
    assert simulate(["--model", model, "--gpu", "H100", "--factor", "2", *LOAD, "--json", paths[1]]) == 0
    assert "1 prefill and 1 decode workers" in (told := capsys.readouterr().out) and "goodput" in told
    fast, slow = (msgspec.json.decode(Path(path).read_bytes(), type=Report) for path in paths)
    assert fast.requests == slow.requests == fast.answered and fast.output_tokens_per_s > 0
    assert slow.tpot_ms.p50 == pytest.approx(2 * fast.tpot_ms.p50, rel=0.1)
    assert bench(["--compare", *paths]) == 0
    assert "TPOT p50" in capsys.readouterr().out


def test_measured_costs_take_the_place_of_the_roofline(model: str, tmp_path: Path) -> None:
    costs, report = tmp_path / "costs.json", tmp_path / "report.json"
    worker = CalibratedWorker(costs=StepCosts(step=0.02, prompt_token=1e-4), kv_tokens=9999, token_bytes=64)
    measured = Calibration(model="m", device="d", front_ms=30.0, pause_ms=1.0, decode=worker)
    costs.write_bytes(msgspec.json.encode(measured))
    words = ["--model", model, "--costs", str(costs), "--prefill", "0", *LOAD, "--rate", "0.5", "--json", str(report)]
    assert simulate(words) == 0
    found = msgspec.json.decode(report.read_bytes(), type=Report)
    assert found.tpot_ms.p50 == pytest.approx(21.0, rel=0.01)
    assert found.ttft_ms.p50 == pytest.approx(20.0 + 500 * 0.1 + 30.0, rel=0.3)


def test_rates_are_swept(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", model, "--gpu", "L40S", "--prompt-tokens", "200", "--output-tokens", "5", "--seconds", "1"]
    assert simulate([*words, "--sweep", "5,10"]) == 0
    assert "goodput   10.00 requests/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpu", "H1000", *LOAD], "--gpu"),
        (["--rate", "4"], "--prompt-tokens"),
        ([*LOAD, "--dies", "p9@3"], "--dies"),
        ([*LOAD, "--dies", "p1@soon"], "--dies"),
        ([*LOAD, "--gpu", "L4", "--kv-tokens", "16"], "no room for KV"),
        ([*LOAD, "--costs", "/nowhere.json"], "--costs"),
        ([*LOAD, "--sweep", "1,2", "--find-goodput"], "--sweep"),
    ],
)
def test_bad_input_is_named(model: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(["--model", model, *words]) == BAD_INPUT
    assert told in capsys.readouterr().err
