"""Several gateways on one port, as processes: each answers for all, judges alike, and is started again."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from dashboard.reading import history
from dashboard.reading.badput import tenants
from dashboard.reading.source import Source
from gateway.text.tokenizer import ModelTokenizer
from infra.network.listening import listen
from infra.redis.worker_load import WorkerLoad
from pricing.step_costs.steps import StepCosts
from tests.gateway.apart import peer_apart
from tests.gateway.keys.conftest import KeyMaker, key_file, make
from tests.gateway.running import empty
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S, children, wait_until

__all__ = ["key_file", "make"]

ROOT = Path(__file__).resolve().parents[2]
BODY = {"prompt": "a", "max_tokens": 40}
_COUNTED = re.compile(r'^baton:requests_ended_total\{gateway="(.*?)".*outcome="finished"\} (\S+)$', re.MULTILINE)
STEP_COSTS = StepCosts(step=0.0005, prompt_token=0.01, steps=50, fastest=0.0005)
"""What the worker says of its steps. They take longer, so that an objective between the two is admitted and missed."""
ASKED = {"patient": 20, "hasty": 12, "strict": 8}
OBJECTIVES = {"patient": "ttft=60s,tpot=10s", "hasty": "tpot=1ms", "strict": "ttft=1ms"}
"""Requests of each tenant, and the objective of its key: all are good, late, refused."""
JUDGED = {"good": ASKED["patient"], "late": ASKED["hasty"], "refused": ASKED["strict"]}


@pytest.fixture
async def peer(model: Path, redis_url: str, secret_file: Path) -> AsyncIterator[None]:
    """A worker whose answers take forty steps; forty clients at once on the test's loop do not silence it."""
    await empty(redis_url)
    end, secret = ModelTokenizer(model).stop_ids[0], secret_file.read_bytes()
    load = WorkerLoad(blocks_total=1000, costs=STEP_COSTS)
    async with peer_apart("decode", redis_url, secret, model, lambda *_: [*[40] * 39, end], load):
        yield


async def gets(url: str, path: str, there: Callable[[httpx.Response], bool], key: str) -> httpx.Response:
    """Asks on new connections until an answer is as wanted."""
    headers = {"authorization": f"Bearer {key}"}
    end, said = time.monotonic() + DEADLINE_S, "nothing"
    while time.monotonic() < end:
        try:
            async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=PLAIN) as client:
                answer = await client.get(path, headers=headers)
            if there(answer):
                return answer
            said = answer.text[:400]
        except httpx.TransportError as error:
            said = repr(error)
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} did not become what was wanted: {said}")


def lives(count: int, without: str = "") -> Callable[[httpx.Response], bool]:
    """Tells of an answer of /stats whether it names so many gateways, and not this one."""

    def told(answer: httpx.Response) -> bool:
        epochs = [one["epoch"] for one in answer.json()["gateways"]] if answer.status_code == 200 else []
        return len(epochs) == count and without not in epochs

    return told


async def test_two_gateways_are_one_to_their_clients(
    peer: None, model: Path, redis_url: str, secret_file: Path, make: KeyMaker, key_file: Path, tmp_path: Path
) -> None:
    keys = {tenant: make(tenant, slo=objective) for tenant, objective in OBJECTIVES.items()}
    operator = make("operator", operator=True)
    with listen("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
    options = {"model": model, "redis": redis_url, "secret-file": secret_file, "port": port, "gateways": 2}
    options["api-keys"] = key_file
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--served-model-name", "m", "--status-file", str(tmp_path / "s")]
    command = [sys.executable, "-m", "gateway", *words]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        await gets(url, "/stats", lives(2), operator)
        for _ in range(12):  # each on a new connection, which may be either one's
            await gets(url, "/ready", lambda answer: answer.status_code == 200, operator)
        assert {json.loads((tmp_path / f"s.{number}").read_text())["stage"] for number in (0, 1)} == {"ready"}

        async def ask(key: str) -> int:
            async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=PLAIN) as client:
                headers = {"authorization": f"Bearer {key}"}
                return (await client.post("/v1/completions", json=BODY, headers=headers)).status_code

        asks = [ask(keys[tenant]) for tenant, requests in ASKED.items() for _ in range(requests)]
        assert await asyncio.gather(*asks) == [200] * (JUDGED["good"] + JUDGED["late"]) + [429] * JUDGED["refused"]

        def all_counted(answer: httpx.Response) -> bool:
            counts = [float(count) for _, count in _COUNTED.findall(answer.text)]
            return len(counts) == 2 and sum(counts) == JUDGED["good"] + JUDGED["late"]

        page = await gets(url, "/metrics", all_counted, operator)
        assert _judged_by_metrics(page.text) == JUDGED
        stats = await gets(url, "/stats", lambda answer: answer.json()["judged"] == JUDGED, operator)
        lives_judged = [Counter(life["judged"]) for life in stats.json()["gateways"]]
        assert len(lives_judged) == 2 and sum(lives_judged, Counter()) == JUDGED
        await asyncio.to_thread(_agrees, redis_url)
        assert page.text.count("# TYPE baton:requests_ended_total counter") == 1
        usable = re.findall(r"^baton:worker_usable\{.*$", page.text, re.MULTILINE)
        assert usable and len(set(usable)) == len(usable), "workers are told of once"

        os.kill(children(process.pid)[0], signal.SIGKILL)
        names = {name for name, _ in _COUNTED.findall(page.text)}
        new = await gets(url, "/stats", lambda answer: lives(2)(answer) and not names >= _epochs(answer), operator)
        assert len(names & _epochs(new)) == 1, "the other one went on, and one was started again"

        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0
    finally:
        process.kill()
        said = process.communicate(timeout=DEADLINE_S)[1]
    assert "Traceback" not in said


def _judged_by_metrics(page: str) -> Counter[str]:
    """Sums over gateways, as a query of the board does."""
    found: Counter[str] = Counter()
    for name, judged in (("good", "good"), ("late", "late"), ("ended", "refused")):
        outcome = ',outcome="refused"' if name == "ended" else ""
        counts = re.findall(rf"^baton:requests_{name}_total\{{[^}}]*?{outcome}[^}}]*\}} (\S+)$", page, re.MULTILINE)
        found[judged] += sum(int(float(count)) for count in counts)
    return found


def _agrees(redis_url: str) -> None:
    """Fails unless the records in Redis, read as the dashboard does, say the same of all and of each tenant."""
    source = Source(redis_url)
    wait_until(lambda: len(source.read().finished) == sum(JUDGED.values()), "the records of all requests")
    snapshot = source.read()
    source.close()
    assert Counter(record.judged() for record in snapshot.finished) == JUDGED
    counts = history.glance(snapshot, DEADLINE_S * 10).counts
    assert {outcome.value: count for outcome, count in counts.items() if count} == JUDGED
    uses = tenants(snapshot, DEADLINE_S * 10)
    assert {tenant: use.requests for tenant, use in uses.items()} == ASKED
    assert {tenant: use.good for tenant, use in uses.items()} == ASKED | {"hasty": 0, "strict": 0}


def _epochs(answer: httpx.Response) -> set[str]:
    return {one["epoch"] for one in answer.json()["gateways"]}


async def test_a_gateway_that_cannot_start_ends_all(model: Path, redis_url: str, tmp_path: Path) -> None:
    words = ["--model", str(tmp_path / "none"), "--redis", redis_url, "--gateways", "2", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *words, cwd=ROOT, stderr=subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 2
    assert b"--model" in said and b"Traceback" not in said
