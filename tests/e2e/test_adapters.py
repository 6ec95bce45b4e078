"""Adapters through the split system: PEFT's tokens in any company, also where a worker dies; loading while it runs.

The prefill worker has two ranks.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from infra.redis.records import WorkerRecord
from tests.adapter_reference import adapted_by, build_adapter
from tests.e2e.harness.deaths import death_midway
from tests.e2e.harness.golden import LIMITS, build_served_model, tokens_of
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.reference import Golden, golden, make_prompts
from tests.waiting import DEADLINE_S, LONG_DEADLINE_S, wait_until

LENGTHS = [5, 33, 64, 97, 150, 200]
NEW_TOKENS = 24
LONG, LONG_LENGTHS = 160, [20, 40, 60, 80]  # answers that take long enough for a worker to die in their midst
Runs = dict[str, list[Golden]]


class Served(NamedTuple):
    """A running system with adapters, and what each of them gives."""

    system: System
    root: Path  # below which adapters may be loaded
    runs: Runs  # by the name of an adapter, "model" without one
    long: Runs  # the same with long answers, without those that are too close to call


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory, root = tmp_path_factory.mktemp("system"), tmp_path_factory.mktemp("adapters")
    model = build_served_model(tmp_path_factory.mktemp("served") / "model", "llama")
    prompts, others = make_prompts(LENGTHS, 320), make_prompts(LONG_LENGTHS, 320, seed=1)
    runs = {"model": golden(model, prompts, NEW_TOKENS)}
    long = {"model": golden(model, others, LONG, most_dropped=0.5)}
    for seed, name in enumerate(("sql", "law", "later")):
        adapter = build_adapter(root / name, model, seed=seed + 5, r=4 * (seed + 1), use_rslora=name == "law")
        runs[name] = golden(model, prompts, NEW_TOKENS, load=adapted_by(adapter))
        if name == "sql":
            long[name] = golden(model, others, LONG, load=adapted_by(adapter), most_dropped=0.5)
    (root / "broken").mkdir()
    worker = ["--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56", "--max-loras", "3"]
    worker += ["--lora", f"sql={root}/sql", "--lora", f"law={root}/law", "--prefill-tp", "2"]
    loading = ["--lora-root", str(root), "--allow-lora-loading"]
    options: dict[str, Any] = {"worker": [*worker, *loading], "gateway": loading}
    with System(directory, model, prefill=1, decode=2, **options) as system:
        yield Served(system, root, runs, long)


def post(system: System, path: str, **body: str) -> httpx.Response:
    return httpx.post(f"{system.gateway_url}{path}", json=body, timeout=LONG_DEADLINE_S, verify=PLAIN)


def ask(system: System, asked: Sequence[tuple[str, Golden]]) -> list[list[int]]:

    async def one(client: httpx.AsyncClient, name: str, run: Golden) -> list[int]:
        length = len(run.tokens)
        body = {"model": name, "prompt": run.prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name
        return tokens_of(answer.json()["choices"][0]["text"])

    async def everything() -> list[list[int]]:
        async with httpx.AsyncClient(
            base_url=system.gateway_url, timeout=LONG_DEADLINE_S, limits=LIMITS, verify=PLAIN
        ) as client:
            return await asyncio.gather(*(one(client, name, run) for name, run in asked))

    return asyncio.run(everything())


def mixed(runs: Runs, *names: str) -> list[tuple[str, Golden]]:
    return [
        (name, run)
        for of_prompt in zip(*(runs[name] for name in names), strict=False)
        for name, run in zip(names, of_prompt, strict=True)
    ]


def listed(system: System) -> dict[str, str | None]:
    data = httpx.get(f"{system.gateway_url}/v1/models", timeout=DEADLINE_S, verify=PLAIN).json()["data"]
    return {model["id"]: model["parent"] for model in data}


def test_equal_prompts_of_two_adapters_and_the_model_keep_apart(served: Served) -> None:
    """Twice, so that the second time all KV is cached; were it one another's, tokens would be."""
    system, runs = served.system, served.runs
    assert listed(system) == {"model": None, "sql": "model", "law": "model"}
    asked = mixed(runs, "model", "sql", "law")
    for _ in range(2):
        assert ask(system, asked) == [run.tokens for _, run in asked]
    records = system.wait_until_idle()
    assert sum(record.load.handoffs for record in records if record.role == "decode") == 2 * len(asked)
    assert sum(record.load.kv.found_tokens for record in records) > 0
    missing = httpx.post(
        f"{system.gateway_url}/v1/completions", json={"model": "lex", "prompt": "w1"}, timeout=DEADLINE_S, verify=PLAIN
    )
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == (
        "the model 'lex' does not exist; this server has 'model' and the adapters 'law', 'sql'"
    )


def test_an_adapter_is_loaded_and_unloaded_while_requests_run(served: Served) -> None:
    system, runs = served.system, served.runs
    answer = post(system, "/v1/load_lora_adapter", lora_name="later", lora_path="later")
    assert answer.status_code == 200, answer.text
    assert answer.text == "Success: LoRA adapter 'later' added successfully."
    assert listed(system)["later"] == "model"
    asked = mixed(runs, "later", "sql") * 2
    found: list[list[int]] = []
    asking = threading.Thread(target=lambda: found.extend(ask(system, asked)))
    asking.start()
    wait_until(lambda: system.in_progress() > 0, "requests under way")
    assert post(system, "/v1/unload_lora_adapter", lora_name="later").status_code == 200
    assert "later" not in listed(system)
    asking.join()
    assert found == [run.tokens for _, run in asked]

    def names(record: WorkerRecord) -> set[str]:
        return {held.name for held in record.adapters}

    wait_until(lambda: all(names(record) == {"sql", "law"} for record in system.records()), "its memory to be freed")


def test_what_cannot_be_loaded_is_refused_in_a_sentence(served: Served) -> None:
    system = served.system
    for name, path, status, why in (
        ("sql", "later", 400, "the name 'sql' is taken by an adapter that is loaded"),
        ("model", "later", 400, "the name 'model' is taken by the model"),
        ("new", "../elsewhere", 400, "the adapter's path '../elsewhere' is not below --lora-root"),
        ("new", "broken", 400, "'broken' has no adapter_config.json"),
        ("new", "nowhere", 400, "there is no directory 'nowhere'"),
        ("a b", "later", 400, "'a b' is no adapter's name"),
    ):
        answer = post(system, "/v1/load_lora_adapter", lora_name=name, lora_path=path)
        assert answer.status_code == status and why in answer.json()["error"]["message"], answer.text
    for name, status, why in (("sql", 400, "given at the start"), ("gone", 404, "the model 'gone' does not exist")):
        answer = post(system, "/v1/unload_lora_adapter", lora_name=name)
        assert answer.status_code == status and why in answer.json()["error"]["message"], answer.text
        assert answer.json()["error"]["param"] == "lora_name"
    assert post(system, "/v1/load_lora_adapter", lora_name="x").json()["error"]["message"] == "lora_path is missing"
    assert listed(system).keys() == {"model", "sql", "law"}


def adapters_of_a_start(system: System, name: str) -> set[str]:
    """Starts a worker; the adapters that its record names when it is ready, all of which it had loaded before that."""
    before, written = {record.epoch for record in system.records()}, len(system.log())
    system.start_worker(name)
    system.address(name)
    (record,) = [record for record in system.records() if record.epoch not in before]
    wait_until(lambda: f"ready: {record.role} worker" in system.log()[written:], "the line that it is ready")
    its_log = system.log()[written:]  # nobody else has an adapter to load
    assert 0 < its_log.find("loaded the adapter 'later'") < its_log.find(f"ready: {record.role} worker"), its_log
    assert not any(held.error for held in record.adapters)
    return {held.name for held in record.adapters}


def test_a_worker_that_starts_or_starts_again_has_all_adapters_before_it_is_ready(served: Served) -> None:
    """Kills the only prefill worker: what it lacked after its second start, no request could use."""
    system, runs = served.system, served.runs
    assert post(system, "/v1/load_lora_adapter", lora_name="later", lora_path="later").status_code == 200
    assert adapters_of_a_start(system, "decode-2") == {"sql", "law", "later"}
    system.kill("prefill-0")
    assert adapters_of_a_start(system, "prefill-0") == {"sql", "law", "later"}
    asked = mixed(runs, "later", "model", "sql", "law")
    assert ask(system, asked) == [run.tokens for _, run in asked]
    assert post(system, "/v1/unload_lora_adapter", lora_name="later").status_code == 200


def test_a_decode_worker_that_dies_costs_no_token_of_an_adapter(served: Served) -> None:
    """The last test: it leaves one worker fewer."""
    system = served.system
    asked = [(name, run) for name, runs in served.long.items() for run in runs] * 7
    with death_midway(system):
        assert ask(system, asked) == [run.tokens for _, run in asked]
    assert all(record.outcome == "finished" for record in system.finished())
    wait_until(lambda: any(record.attempts > 1 for record in system.finished()), "a request that was begun anew")
