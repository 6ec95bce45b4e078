"""`baton simulate` on a config alone: the report of `baton bench`, and refusals in one sentence."""

import io
import json
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infra.cli import parse
from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from launcher.bench.bench import bench
from launcher.bench.calibration import CalibratedWorker, Calibration
from launcher.bench.rates import exit_status
from launcher.simulating.options import SimulateConfig
from launcher.simulating.simulate import simulate, simulated_deployment, simulated_load
from launcher.stages import StageDisplay
from launcher.words import BAD_INPUT_STATUS, INTERRUPTED_STATUS
from pricing.step_costs.steps import StepCosts, StepWork
from simulation.simulation import DeploymentSimulation
from workloads.goodput import Trial
from workloads.report import Report
from workloads.table import table

LLAMA_8B: dict[str, Any] = {
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


def test_measured_costs_take_the_place_of_model_and_roofline(tmp_path: Path) -> None:
    costs, report = tmp_path / "costs.json", tmp_path / "report.json"
    worker = CalibratedWorker(costs=StepCosts(step=0.02, prompt_token=1e-4), kv_tokens=9999, token_bytes=64)
    measured = Calibration(model="m", device="d", front_ms=30.0, pause_ms=1.0, decode=worker)
    costs.write_bytes(msgspec.json.encode(measured))
    words = ["--costs", str(costs), "--prefill", "0", *LOAD, "--rate", "0.5", "--json", str(report)]
    assert simulate(words) == 0
    found = msgspec.json.decode(report.read_bytes(), type=Report)
    assert found.tpot_ms.p50 == pytest.approx(21.0, rel=0.01)
    assert found.ttft_ms.p50 == pytest.approx(20.0 + 500 * 0.1 + 30.0, rel=0.3)


def test_ctrl_c_gives_the_report_so_far(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptingDisplay(StageDisplay):
        def show(self, name: str, text: str, percent: int | None = None, note: str = "") -> None:
            shown.append(f"{name} {text} {percent}% {note}")
            if len(shown) == 4:
                signal.raise_signal(signal.SIGINT)

    shown: list[str] = []
    for name in ("QUIET_S", "PROGRESS_PERIOD_S"):
        monkeypatch.setattr(f"launcher.simulating.run.{name}", 0.0)
    config = parse(SimulateConfig, ["--model", model, *LOAD, "--seconds", "40"], "baton simulate")
    simulation = DeploymentSimulation(simulated_deployment(config))
    report = simulated_load(config, simulation, InterruptingDisplay(io.StringIO())).report
    assert report.interrupted and report.requests == report.answered == 4 and report.good_share == 1.0
    assert "4/s simulating" in shown[-1] and "4 requests ended" in shown[-1]
    assert "interrupted" in "\n".join(table(report))
    assert exit_status([Trial(4.0, report)]) == INTERRUPTED_STATUS


def test_a_damaged_trace_gives_the_report_up_to_its_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, report = tmp_path / "trace.jsonl", tmp_path / "report.json"
    row = '{"timestamp": %d, "input_length": 9, "output_length": 2}\n'
    trace.write_text("".join(row % number for number in (1000, 2000, 30_000, 30_001, 5)))
    assert simulate(["--model", model, "--trace", str(trace), "--json", str(report)]) == BAD_INPUT_STATUS
    output = capsys.readouterr()
    assert "line 5: its time is before" in output.err and "interrupted before its end" in output.out
    found = msgspec.json.decode(report.read_bytes(), type=Report)
    assert found.interrupted and found.requests == found.answered == 2


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
        ([*LOAD, "--model", "", "--costs", "/nowhere.json"], "--costs: '/nowhere.json'"),
        ([*LOAD, "--model", ""], "--model"),
        ([*LOAD, "--sweep", "1,2", "--find-goodput"], "--sweep"),
        ([*LOAD, "--tensor-parallel", "3"], "--tensor-parallel"),
        ([*LOAD, "--prefill", "0", "--prefill-tp", "2"], "--prefill-tp"),
        ([*LOAD, "--speculation", "auto", "--speculative-tokens", "17"], "--speculative-tokens"),
        ([*LOAD, "--speculation", "draft"], "--draft-model"),
        ([*LOAD, "--lora", "sql=./sql"], "--lora"),
        ([*LOAD, *(f"--lora=a{number}=8" for number in range(3)), "--max-loras", "2"], "--max-loras"),
        ([*LOAD, "--host-gb-per-s", "20"], "--host-kv-memory"),
        ([*LOAD, "--host-kv-memory", "1KiB"], "a KV block takes"),
        ([*LOAD, "--key-shares", "a=1"], "--key-shares"),
        ([*LOAD, "--api-keys", "/nowhere.json"], "--api-keys"),
        ([*LOAD, "--slo", "fast"], "ttft=2s"),
        ([*LOAD, "--model", "docs"], "has no config.json"),
        ([*LOAD, "--model", "UNKNOWN"], "does not say its layers and heads"),
    ],
)
def test_bad_input_is_named(
    model: str, words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text('{"model_type": "mamba", "hidden_size": 2048}')
    words = [str(unknown) if word == "UNKNOWN" else word for word in words]
    assert simulate(["--model", model, *words]) == BAD_INPUT_STATUS
    assert told in capsys.readouterr().err


def test_drafting_heads_take_memory_kv_and_seconds_of_prompts(model: str) -> None:
    """EAGLE's layer stores KV on prefill workers, too; Medusa's heads are weights of decode workers alone."""
    made = {
        kind: simulated_deployment(parse(SimulateConfig, ["--model", model, "--speculation", kind], "baton simulate"))
        for kind in ("none", "eagle", "medusa")
    }
    plain, eagle, medusa = (each.device_of("prefill") for each in made.values())
    assert eagle.token_bytes == plain.token_bytes + plain.token_bytes // LLAMA_8B["num_hidden_layers"]
    prompt, decodes = StepWork(prompt_tokens=4096, pairs=4096 * 2048), StepWork(sequences=8, context=8000)
    layer = 4096 * 4096 * (2 + 2 + 0.5) + 3 * 4096 * 14336
    products_s = 2 * (layer * 4096 + 2 * 4096 * prompt.pairs) / (989e12 * 0.6)
    assert eagle.seconds(prompt) - plain.seconds(prompt) == pytest.approx(products_s, rel=0.01)
    assert eagle.seconds(decodes) == plain.seconds(decodes)
    assert (medusa.blocks, medusa.token_bytes, medusa.seconds(prompt)) == (
        plain.blocks,
        plain.token_bytes,
        plain.seconds(prompt),
    )
    lost = (made["none"].device.blocks - made["medusa"].device.blocks) * plain.block_tokens * plain.token_bytes
    assert lost == pytest.approx(2 * 5 * (4096**2 + 4096 * 128256), rel=0.01)
    assert made["medusa"].device.drafts is not None and made["medusa"].device.drafts.tree().parents_of(16)


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "m"],
        ["--factor", "2"],
        ["--gpu", "L4"],
        ["--tensor-parallel", "2"],
        ["--lora", "a=8"],
        ["--speculation", "eagle"],
    ],
)
def test_measured_costs_are_of_what_was_measured(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(["--costs", str(tmp_path / "costs.json"), *LOAD, *words]) == BAD_INPUT_STATUS
    assert f"{words[0]}" in (told := capsys.readouterr().err) and "--costs" in told


def test_a_wide_worker_reads_its_share_and_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """70B takes four H100s; on eight a lone answer's step lasts what reading, launches and sums take."""
    large = {**LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    large |= {"max_position_embeddings": 131072}
    (tmp_path / "config.json").write_text(json.dumps({**large, "num_attention_heads": 64}))
    report = tmp_path / "report.json"
    words = ["--model", str(tmp_path), *LOAD, "--rate", "0.2", "--prefill", "0", "--json", str(report)]
    one = [*words, "--tensor-parallel", "1"]
    assert simulate(one) == BAD_INPUT_STATUS and "--tensor-parallel 0" in capsys.readouterr().err
    assert simulate(words) == 0 and "4 GPUs each" in capsys.readouterr().out
    assert simulate([*words, "--tensor-parallel", "8"]) == 0
    found = msgspec.json.decode(report.read_bytes(), type=Report)
    reading_ms = 1000 * 69.5e9 * 2 / (8 * 3.35e12 * 0.8)
    sums_ms = 1000 * 2 * 80 * (10e-6 + 2 * 7 / 8 * 8192 * 2 / 450e9)
    assert found.tpot_ms.p50 == pytest.approx(reading_ms + sums_ms, rel=0.1)


def test_requests_come_with_keys(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys.json"
    options = {"quiet": KeyOptions(weight=2.0), "loud": KeyOptions(requests_per_minute=5)}
    change_keys(keys, lambda _: [make_key(name, each, 0.0).record for name, each in options.items()], create=True)
    words = ["--model", model, "--gpu", "H100", *LOAD, "--api-keys", str(keys)]
    assert simulate([*words, "--key-shares", "quiet=1,loud=3"]) == 1
    assert "key       loud:" in (told := capsys.readouterr().out) and "x rate_limit_exceeded" in told
    assert simulate([*words, "--key-shares", "quiet=1,nobody=3"]) == BAD_INPUT_STATUS
    assert "nobody=3" in capsys.readouterr().err


def test_handoffs_of_tenants_and_adapters_are_taken(model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    change_keys(keys, lambda _: [make_key("quiet", KeyOptions(), 0.0).record], create=True)
    load = ["--rate", "6", "--seconds", "4", "--prompt-tokens", "2000", "--output-tokens", "100"]
    assert simulate(["--model", model, *load, "--api-keys", str(keys)]) == 0
    assert simulate(["--model", model, *load, "--lora", "sql=8", "--lora", "chat=16"]) == 0
