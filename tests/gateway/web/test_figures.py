"""Figures over HTTP: records of requests and gateways, `/metrics`, `/stats`."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from contracts.slo import Objective
from infra.network.sealing import Signer
from infra.redis.records import GatewayRecord, KVLink
from infra.redis.registry import RECORD_PURPOSE, listed
from infra.redis.worker_load import HandoffCounts, HeldBlocks, KVCounts, StepTokens, WorkerLoad
from pricing.routes.backlog import Backlog
from pricing.step_costs.steps import StepCosts
from tests.gateway.conftest import SECRET
from tests.gateway.running import Running, Serve
from tests.gateway.web.test_http import GUESSES
from tests.waiting import DEADLINE_S


async def test_the_record_of_a_finished_request(running: Running) -> None:
    answer = await running.chat()
    record = (await running.finished(1))[0]
    assert answer.json()["id"] == f"chatcmpl-{record.request}"
    assert (record.outcome, record.reason, record.attempts, record.good) == ("finished", "stop", 1, True)
    assert record.output_tokens == answer.json()["usage"]["completion_tokens"]
    assert record.prompt_tokens == answer.json()["usage"]["prompt_tokens"]
    assert 0 < record.ttft_ms < record.e2e_ms
    assert abs(record.tpot_ms - (record.e2e_ms - record.ttft_ms) / (record.output_tokens - 1)) < 1e-6
    assert (record.queue_ms, record.prefill_ms, record.handoff_bytes) == (1.5, 2.5, 4096)
    assert (record.grant_ms, record.exposed_ms, record.handoff_ms) == (4.0, 0.75, 8.0)
    assert record.send_ms == 1.25, "what each side measures of it"
    assert (record.transport, record.sealed, record.codec) == ("tcp", True, "fp8")
    assert record.prefill_worker == running.peer("prefill").epoch
    assert record.decode_worker == running.peer("decode").epoch


async def test_the_record_of_the_gateway(serve: Serve) -> None:
    running = await serve("prefill")
    await running.add("decode", stalls_at=3)
    task = asyncio.create_task(running.chat())
    seen: list[GatewayRecord] = []

    async def shown() -> bool:
        seen[:] = [
            record for record, _ in await listed(running.store, Signer(SECRET.encode(), RECORD_PURPOSE), GatewayRecord)
        ]
        return bool(seen and seen[0].requests and seen[0].requests[0].output_tokens == 3)

    async with asyncio.timeout(DEADLINE_S):
        while not await shown():
            await asyncio.sleep(0.05)
    assert seen[0].requests[0].state == "decode"
    assert seen[0].url == running.url and seen[0].objective == Objective(2000.0, 100.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def has_lines(text: str, *wanted: str) -> None:
    lines = text.splitlines()
    assert [line for line in wanted if line not in lines] == [], text


async def test_metrics(running: Running) -> None:
    await running.chat()
    await running.chat(max_tokens=2)
    await running.chat(temperature=9)
    text = (await running.client.get("/metrics")).text
    has_lines(
        text,
        'vllm:time_to_first_token_seconds_count{model_name="tiny"} 2.0',
        'vllm:request_success_total{finished_reason="stop",model_name="tiny"} 1.0',
        'vllm:request_success_total{finished_reason="length",model_name="tiny"} 1.0',
        'baton:requests_good_total{model_name="tiny"} 2.0',
        'baton:requests_refused_total{code="invalid_value",model_name="tiny",status="400"} 1.0',
        'baton:requests_in_progress{model_name="tiny"} 0.0',
    )
    epoch = running.peer("decode").epoch
    assert f'vllm:kv_cache_usage_perc{{engine="{epoch}",model_name="tiny",role="decode"}} 0.0' in text


async def test_figures_by_role_are_in_metrics_and_stats(running: Running) -> None:
    for peer, free in ((running.peer("prefill"), 100), (running.peer("decode"), 25)):
        costs = StepCosts(step=0.01, prompt_token=1e-3, sequence=1e-3)
        backlog = Backlog(prompts=1, tokens=500, sequences=3, context=30, free_blocks=free)
        peer.load = WorkerLoad(blocks_total=100, costs=costs, backlog=backlog)
        await peer.beat()
    await running.gateway.discovery.poll()
    await running.chat()
    await running.gateway._record()
    text = (await running.client.get("/metrics")).text
    has_lines(
        text,
        'baton:serving_workers{model_name="tiny",role="decode"} 1.0',
        'baton:queued_prefill_tokens{model_name="tiny",role="prefill"} 500.0',
        'baton:used_blocks_ratio{model_name="tiny",role="decode"} 0.75',
        'baton:waiting_prompt_tokens{model_name="tiny",role="prefill"} 0.0',
    )
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert 0.5 < float(figures['baton:predicted_ttft_seconds{model_name="tiny",role="prefill"}']) < 1.0
    assert float(figures['baton:predicted_tpot_seconds{model_name="tiny",role="decode"}']) == pytest.approx(0.014)
    assert float(figures['baton:prompt_busy_workers{model_name="tiny",role="prefill"}']) > 0
    standing = (await running.client.get("/stats")).json()["standing"]
    assert standing["prefill"]["workers"][0]["queued_tokens"] == 500


async def test_metrics_of_shared_kv(running: Running) -> None:
    peer = running.peer("decode")
    counts = KVCounts(
        queried_tokens=900,
        found_tokens=600,
        copied_blocks=5,
        evicted_blocks=9,
        spilled_blocks=8,
        returned_blocks=7,
        preempted_swapped=3,
        preempted_recomputed=2,
        used_slots=160,
        wasted_slots=40,
    )
    peer.load = WorkerLoad(blocks_total=1000, blocks_used=10, blocks_cached=30, preemptions=4, kv=counts)
    await peer.beat()
    await running.gateway.discovery.poll()
    text = (await running.client.get("/metrics")).text
    labels = f'{{engine="{peer.epoch}",model_name="tiny",role="decode"}}'
    for name, kind, value in (
        ("vllm:prefix_cache_queries_total", "counter", 900),
        ("vllm:prefix_cache_hits_total", "counter", 600),
        ("vllm:num_preemptions_total", "counter", 4),
        ("vllm:kv_cache_usage_perc", "gauge", 0.01),
        ("baton:kv_wasted_slots_ratio", "gauge", 0.25),
        ("baton:kv_blocks_cached", "gauge", 30),
        ("baton:kv_blocks_evicted_total", "counter", 9),
        ("baton:kv_blocks_spilled_total", "counter", 8),
        ("baton:kv_blocks_returned_total", "counter", 7),
        ("baton:kv_blocks_copied_total", "counter", 5),
        ("baton:preemptions_swapped_total", "counter", 3),
        ("baton:preemptions_recomputed_total", "counter", 2),
    ):
        assert f"# TYPE {name} {kind}\n" in text, text
        assert f"\n{name}{labels} {float(value)}\n" in text, text
    idle = f'{{engine="{running.peer("prefill").epoch}",model_name="tiny",role="prefill"}}'
    assert f"baton:kv_wasted_slots_ratio{idle} 0.0\n" in text, "nothing is wasted where nothing is used"


async def test_metrics_of_handoffs(running: Running) -> None:
    await running.chat()
    (prefill, decode) = (running.peer("prefill"), running.peer("decode"))
    counts = HandoffCounts(2.0, 1.5, 0.25, 0.0, {"cancelled": 3, "other": 1}, {"stray": 5})
    prefill.load = WorkerLoad(handoff=counts, held=HeldBlocks(pinned=12, quarantined=2))
    prefill.links = [KVLink(peer, "tcp", True, "fp8") for peer in ("one", "another")]
    decode.load = WorkerLoad(handoff=HandoffCounts(land_seconds=0.125), held=HeldBlocks(reserved=7, quarantined=1))
    for peer in (prefill, decode):
        await peer.beat()
    await running.gateway.discovery.poll()
    text = (await running.client.get("/metrics")).text
    expected = [
        (prefill, "baton:handoff_seconds_total", 'stage="grant"', 2.0),
        (prefill, "baton:handoff_seconds_total", 'stage="send"', 1.5),
        (prefill, "baton:handoff_seconds_total", 'stage="exposed"', 0.25),
        (decode, "baton:handoff_seconds_total", 'stage="land"', 0.125),
        (prefill, "baton:handoffs_given_up_total", 'reason="cancelled"', 3),
        (prefill, "baton:handoffs_given_up_total", 'reason="other"', 1),
        (prefill, "baton:handoff_frames_dropped_total", 'reason="stray"', 5),
        (prefill, "baton:handoff_blocks", 'state="pinned"', 12),
        (prefill, "baton:handoff_blocks", 'state="quarantined"', 2),
        (decode, "baton:handoff_blocks", 'state="reserved"', 7),
        (decode, "baton:handoff_blocks", 'state="quarantined"', 1),
        (prefill, "baton:handoff_links", 'codec="fp8",sealed="true",transport="tcp"', 2),
    ]
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for peer, name, label, value in expected:
        words = [f'engine="{peer.epoch}"', 'model_name="tiny"', f'role="{peer.role}"', *label.split(",")]
        assert values[f"{name}{{{','.join(sorted(words))}}}"] == str(float(value)), name
    way = 'codec="fp8",model_name="tiny",sealed="true",transport="tcp"'
    assert values[f"baton:handoff_bytes_total{{{way}}}"] == "4096.0"
    for name, total in (("grant", "0.004"), ("exposed", "0.00075")):
        assert values[f'baton:request_handoff_{name}_seconds_sum{{model_name="tiny"}}'] == total


async def test_what_the_workers_say_of_themselves(running: Running) -> None:
    peer = running.peer("decode")
    peer.load = WorkerLoad(running=3, blocks_total=1000, blocks_used=7)
    await peer.beat()
    answer = await running.client.get("/stats")
    assert answer.status_code == 200
    workers = {worker["epoch"]: worker for worker in answer.json()["workers"]}
    assert {epoch: worker["role"] for epoch, worker in workers.items()} == {
        one.epoch: one.role for one in running.peers
    }
    assert workers[peer.epoch] == json.loads(msgspec.json.encode(peer.record)), "all of the record, as it is in Redis"
    shown = workers[peer.epoch]
    assert (shown["device"], shown["dtype"], shown["block_tokens"], shown["draining"]) == ("test", "fp32", 16, False)
    assert (shown["load"]["running"], shown["load"]["blocks_used"], shown["max_model_len"]) == (3, 7, 4096)


async def test_stats_while_redis_is_away(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(running.gateway._store, "execute_command", away)
    refusal = await running.client.get("/stats")
    error = refusal.json()["error"]
    assert (refusal.status_code, error["code"], error["param"]) == (503, "registry_unavailable", None)
    assert int(refusal.headers["retry-after"]) >= 1


async def test_metrics_of_choices_are_vllms(running: Running) -> None:
    running.texts = {0: "Hello", 1: "Hello, world!"}
    answer = await running.chat(n=2, max_tokens=30)
    prompt, output = (answer.json()["usage"][name] for name in ("prompt_tokens", "completion_tokens"))
    lines = (await running.client.get("/metrics")).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    def value(name: str, more: str = "") -> float:
        return float(values[f'vllm:request_{name}{{{more}model_name="tiny"}}'])

    for name, total in (("prompt_tokens", 2 * prompt), ("generation_tokens", output), ("params_max_tokens", 60)):
        assert (value(f"{name}_count"), value(f"{name}_sum")) == (2, total), name
    assert (value("params_n_count"), value("params_n_sum")) == (1, 2)
    assert value("params_max_tokens_bucket", 'le="20.0",') == 0 and value("params_max_tokens_bucket", 'le="50.0",') == 2
    assert value("params_n_bucket", 'le="1.0",') == 0 and value("params_n_bucket", 'le="2.0",') == 1
    assert value("decode_time_seconds_count") == 2 and 0 < value("decode_time_seconds_sum") < 20


async def test_metrics_of_engines_are_vllms(running: Running) -> None:
    peer = running.peer("decode")
    peer.load = WorkerLoad(
        blocks_total=1000, step_tokens=StepTokens((5, 3, *(0,) * 11, 2), 50_000), speculation=GUESSES
    )
    await peer.beat()
    await running.gateway.discovery.poll()
    text = (await running.client.get("/metrics")).text
    labels = f'engine="{peer.epoch}",'
    rest = 'model_name="tiny",role="decode"'
    assert "# TYPE vllm:iteration_tokens_total histogram\n" in text
    for bound, count in (("1.0", 5), ("8.0", 8), ("16384.0", 8), ("+Inf", 10)):
        assert f'vllm:iteration_tokens_total_bucket{{{labels}le="{bound}",{rest}}} {count}.0\n' in text, text
    for name, count in (("drafts", 20), ("draft_tokens", 60), ("accepted_tokens", 33)):
        assert f"vllm:spec_decode_num_{name}_total{{{labels}{rest}}} {count}.0\n" in text
    at = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels}model_name="tiny",position='
    assert f'{at}"0",role="decode"}} 19.0\n' in text and f'{at}"2",role="decode"}} 4.0\n' in text
    assert f"vllm:iteration_tokens_total_sum{{{labels}{rest}}} 50000.0\n" in text
    told = f'block_size="16",cache_dtype="fp32",enable_prefix_caching="True",{labels}model_name="tiny",'
    assert f'vllm:cache_config_info{{{told}num_gpu_blocks="1000",role="decode"}} 1.0\n' in text
