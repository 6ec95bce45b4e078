"""The Grafana board and the alert rules of docs/monitoring, on a real Prometheus that scrapes a real gateway."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from infra.network.listening import listen
from infra.redis.worker_load import WorkerLoad
from pricing.step_costs.steps import StepCosts
from tests.gateway.keys.conftest import KeyMaker, key_file, make
from tests.gateway.running import Running, Serve
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S

__all__ = ["key_file", "make"]

MONITORING = Path(__file__).resolve().parents[3] / "docs" / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
VARIABLES = {"$__rate_interval": "30s", '"$model"': '".*"', '"$job"': '".*"'}
QUIET = {"Speculation"}  # panels without data where nothing is drafted
_METRIC = re.compile(r"\b(?:vllm|baton):[a-z0-9_]+|\bprocess_[a-z_]+")

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None and "CI" not in os.environ, reason="no Prometheus on the PATH"
)


def panels() -> Iterator[tuple[str, str]]:
    """Yields the title and the query of each of the board's targets, with its variables set."""
    board = json.loads((MONITORING / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            query: str = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield panel["title"], query


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@asynccontextmanager
async def prometheus(running: Running, key: str, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Runs a Prometheus that scrapes the gateway every second, with an operator's key, and knows the rules.

    Its settings are those of compose.yaml's, at other places.
    """
    settings = (MONITORING / "prometheus.yaml").read_text()
    settings = re.sub(r"(_interval): \w+", r"\1: 1s", settings).replace("/run/secrets", str(directory))
    (directory / "prometheus.yaml").write_text(settings)
    (directory / "key").write_text(key)
    shutil.copy(ALERTS, directory)
    (target,) = json.loads((MONITORING / "targets-http.json").read_text())
    target["targets"] = [running.url.removeprefix("http://")]
    (directory / "targets.json").write_text(json.dumps([target]))
    with listen("127.0.0.1", 0) as place:
        port = place.getsockname()[1]
    words = ["prometheus", f"--config.file={directory}/prometheus.yaml", f"--storage.tsdb.path={directory}/data"]
    process = subprocess.Popen(
        [*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S, verify=PLAIN) as client:
            yield client
    finally:
        process.kill()
        process.wait()


async def ask(client: httpx.AsyncClient, query: str) -> list[Any]:
    """Returns a query's result; fails if Prometheus refuses it. Empty while Prometheus starts."""
    try:
        answer = (await client.get("/api/v1/query", params={"query": query})).json()
    except (httpx.TransportError, json.JSONDecodeError):
        return []
    assert answer["status"] == "success", (query, answer)
    found: list[Any] = answer["data"]["result"]
    return found


async def test_every_query_of_the_board_answers_and_its_metrics_are_exposed(
    serve: Serve, make: KeyMaker, key_file: Path, tmp_path: Path
) -> None:
    key = make("operator", operator=True)
    running = await serve("prefill", "decode", api_keys=(str(key_file),), slo_ttft_ms=0.01)
    headers = {"authorization": f"Bearer {key}"}

    async def asked(path: str, **body: Any) -> int:
        return (await running.client.post(path, json=body, headers=headers)).status_code

    await running.add("decode", fails="handoff")  # so that some attempts are followed by another
    for peer in running.peers:
        peer.load = WorkerLoad(blocks_total=1000, costs=StepCosts(step=0.002, prompt_token=1e-5, sequence=1e-4))
        peer.record = structs.replace(peer.record, service=f"{peer.role}-0")
    async with prometheus(running, key, tmp_path) as client:
        end = time.monotonic() + 4 * DEADLINE_S
        missing = {title for title, _ in panels()}
        # a rate needs a change between two scrapes: of each kind, something happens all the time
        while missing - QUIET:
            assert time.monotonic() < end, f"these panels have no data: {missing}"
            assert await asked("/v1/completions", prompt="Hi", max_tokens=6) == 200
            assert await asked("/v1/completions", prompt="Hi", max_tokens=-1) == 400
            assert await asked("/v1/completions", prompt="Hi", max_tokens=6, n=2) == 200
            missing = {title for title, query in panels() if not await ask(client, query)}
        firing = await ask(client, 'ALERTS{alertstate="firing"}')
        assert firing == []
        page = (await running.client.get("/metrics", headers=headers)).text
    exposed = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    for title, query in [*panels(), *((rule["alert"], rule["expr"]) for rule in rules())]:
        assert (used := set(_METRIC.findall(query))) and used <= exposed, (title, used - exposed)


EACH_SECOND = "0+60x60"  # by minutes
Series = dict[str, str]
MODEL = 'model_name="m"'


def serving(**by_role: int) -> Series:
    return {f'baton:serving_workers{{model_name="m",role="{role}"}}': f"{n}x60" for role, n in by_role.items()}


UNLOADED: Series = {'baton:model_unloaded{model_name="m"}': "1x60"}


def ended(**by_outcome: str) -> Series:
    return {f'baton:requests_ended_total{{model_name="m",outcome="{name}"}}': n for name, n in by_outcome.items()}


def of_model(name: str, values: str, *labels: str) -> Series:
    return {f"{name}{{{','.join([MODEL, *labels])}}}": values}


RESTARTS = ("baton:worker_restarts_total", 'role="decode"', 'host="h"', 'service="decode-0"')
CASES: list[tuple[str, Series, Series]] = [
    # alert, series with which it fires within the hour, series with which it stays silent
    ("BatonNoMetrics", {"up": "1x60"}, {'baton:build_info{version="1"}': "1x60"}),
    ("BatonCannotServe", serving(prefill=0, decode=0), serving(prefill=1, decode=0)),
    ("BatonNoDecodeWorker", serving(prefill=1, decode=0), serving(prefill=0, decode=0) | UNLOADED),
    (
        "BatonFewGoodRequests",
        of_model("baton:requests_good_total", "0+50x60") | ended(finished=EACH_SECOND),
        of_model("baton:requests_good_total", "0+57x60") | ended(finished=EACH_SECOND, refused=EACH_SECOND),
    ),
    ("BatonRequestsFail", ended(failed="0+1x60", finished=EACH_SECOND), ended(failed="7x60", finished=EACH_SECOND)),
    (
        "BatonRequestsRefused",
        ended(refused="0+6x60", finished=EACH_SECOND),
        ended(refused="0+2x60", finished=EACH_SECOND),
    ),
    ("BatonRequestsWait", of_model("baton:requests_waiting", "3x60"), of_model("baton:requests_waiting", "3 0 " * 30)),
    (
        "BatonKVFull",
        of_model("vllm:kv_cache_usage_perc", "0.99x60", 'role="decode"'),
        of_model("vllm:kv_cache_usage_perc", "0.9x60", 'role="decode"'),
    ),
    (
        "BatonWorkerRestarts",
        of_model(RESTARTS[0], "0+1x60", *RESTARTS[1:]),
        of_model(RESTARTS[0], "9x60", *RESTARTS[1:]),
    ),
    ("BatonWorkersDie", of_model("baton:workers_died_total", "0+1x60"), of_model("baton:workers_died_total", "2x60")),
    ("BatonPairsUnreached", of_model("baton:pairs_unreached", "1x60"), of_model("baton:pairs_unreached", "0x60")),
    (
        "BatonVersionsDiffer",
        {f'baton:build_info{{version="{one}"}}': "1x130" for one in "12"},
        {f'baton:build_info{{version="1",instance="{one}"}}': "1x130" for one in "ab"},
    ),
]


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    """Prometheus' own test of rules; the labels and texts of what fires are read from its own evaluation."""
    assert [name for name, *_ in CASES] == [rule["alert"] for rule in rules()]
    by_name = {rule["alert"]: rule for rule in rules()}
    tests = []
    for name, fires, silent in CASES:
        at = "125m" if name == "BatonVersionsDiffer" else "58m"
        severity = by_name[name]["labels"]["severity"]
        count = f'count(ALERTS{{alertname="{name}",alertstate="firing",severity="{severity}"}})'
        for series, expected in ((fires, [{"labels": "{}", "value": 1}]), (silent, [])):
            given = [{"series": one, "values": values} for one, values in series.items()]
            asked = [{"expr": count, "eval_time": at, "exp_samples": expected}]
            tests.append({"interval": "1m", "input_series": given, "promql_expr_test": asked})
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_says_what_it_shows() -> None:
    board = json.loads((MONITORING / "grafana.json").read_text())
    shown = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert all(panel["description"].endswith(".") and panel["targets"] for panel in shown)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
