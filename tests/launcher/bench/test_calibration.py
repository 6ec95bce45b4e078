"""What `bench --calibrate` asks of a running Baton, and what `simulate --costs` reads."""

from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from contracts.errors import ConfigError, GatewayError
from infra.redis.records import Memory, Role, WorkerRecord
from infra.redis.worker_load import WorkerLoad
from launcher.bench.calibration import ALONE_REQUESTS, calibrate, read_calibration, workers_of
from launcher.bench.options import BenchConfig
from launcher.instance.endpoint import ClientEndpoint
from pricing.roofline.device_use import StepTotals
from pricing.step_costs.steps import StepCosts, StepWork
from tests.dashboard.stand_in import StandIn

BENCH = BenchConfig(vocabulary=1 << 31)


def worker(role: Role, step: float, steps: int = 50) -> WorkerRecord:
    costs = StepCosts(step=step, prompt_token=1e-9, steps=steps, most_tokens=512)
    load, memory = WorkerLoad(costs=costs), Memory(tokens=4000, token_bytes=64)
    return WorkerRecord("e", role, "", "", "m", "f", "c", 16, 1 << 20, "cpu", "bf16", 0.0, load=load, memory=memory)


def test_costs_are_the_medians_of_a_roles_workers(tmp_path: Path) -> None:
    """Workers without a step are left out; an answer takes no less than nothing beside its steps."""
    workers = [worker("decode", 1e-6), worker("decode", 3e-6), worker("decode", 2e-6), worker("decode", 9.0, steps=0)]
    with StandIn(stats=msgspec.to_builtins({"workers": [*workers, worker("prefill", 7.0)]})) as server:
        found = calibrate(ClientEndpoint(server.url, "", ""), BENCH, "demo")
        assert len(server.asked) == ALONE_REQUESTS
    assert found.prefill is not None and found.prefill.costs.step == 7.0 and found.of("prefill") is found.prefill
    assert found.decode.costs.step == 2e-6 and (found.decode.kv_tokens, found.decode.token_bytes) == (4000, 64)
    assert found.front_ms == 0.0, "a step of 7 s, and the stand-in answers at once"
    assert 0.0 <= found.pause_ms < 1000.0, "tokens of the stand-in may come together"
    (tmp_path / "costs").write_bytes(msgspec.json.encode(found))
    assert read_calibration(str(tmp_path / "costs"), "--costs") == found


def test_costs_are_at_the_level_of_all_steps_of_the_load_and_not_of_the_requests_behind_it() -> None:
    """What the newest steps say, and what steps before the load took, is left out."""
    costs = StepCosts(step=0.01, prompt_token=0.001, steps=90)
    early = StepTotals(steps=100, seconds=77.0, rows=100, sequences=100)
    loaded = early.since(StepTotals())
    for tokens in (100, 200):
        loaded = loaded.and_steps(StepWork(tokens), (1.5 * costs.seconds(StepWork(tokens)),))
    alone = loaded.and_steps(StepWork(300), (0.1 * costs.seconds(StepWork(300)),))
    told = [replaced(worker("decode", 0.0), costs, totals) for totals in (early, loaded, alone)]
    with StandIn(stats=[msgspec.to_builtins({"workers": [each]}) for each in told]) as server:
        endpoint = ClientEndpoint(server.url, "", "")
        found = calibrate(endpoint, BENCH, "demo", workers_of(endpoint))
    assert (found.decode.costs.step, found.decode.costs.prompt_token) == pytest.approx((0.015, 0.0015))


def replaced(record: WorkerRecord, costs: StepCosts, totals: StepTotals) -> WorkerRecord:
    return structs.replace(record, load=WorkerLoad(costs=costs, step_totals=totals))


def test_an_endpoint_that_tells_no_costs_is_named() -> None:
    for stats, told in ((None, "is not a Baton's"), ({"workers": []}, "no decode worker has run a step")):
        with StandIn(stats=stats) as server, pytest.raises(GatewayError, match=told):
            calibrate(ClientEndpoint(server.url, "", ""), BENCH, "demo")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "was not written by"),
        ('{"step": 1}', "was not written by"),
        ('{"form": 9, "model": "m", "device": "d", "front_ms": 1, "pause_ms": 1, "decode": WORKER}', "form 9"),
        ('{"model": "m", "device": "d", "front_ms": 1, "pause_ms": 1, "decode": WORKER}', "has no prompt_token"),
    ],
)
def test_files_that_are_no_costs_are_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text.replace("WORKER", '{"costs": {}, "kv_tokens": 1, "token_bytes": 1}'))
    with pytest.raises(ConfigError, match=f"--costs.*{told}"):
        read_calibration(str(file), "--costs")
