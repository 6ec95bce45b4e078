"""The other routes, readiness and admission over HTTP."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.openai.bodies.schemas import MAX_PROMPTS
from gateway.openai.context_window import MAX_VALUES_WITHOUT_IDS
from infra.redis.clients import connect
from infra.redis.worker_load import SpeculationCounts
from tests.gateway.models import CONTEXT_TOKENS, byte_level
from tests.gateway.running import Running, Serve, until
from tests.waiting import DEADLINE_S


async def test_readiness_follows_the_workers(serve: Serve) -> None:
    running = await serve()
    for path in ("/health", "/ready"):
        answer = await running.client.get(path)
        assert answer.status_code == 503
        assert answer.json()["stage"] == "waiting for workers" and answer.json()["percent"] < 100
    refusal = await running.chat()
    assert refusal.status_code == 503 and refusal.json()["error"]["code"] == "no_workers"
    assert int(refusal.headers["retry-after"]) >= 1
    await running.add("decode")
    for path in ("/health", "/ready"):
        assert (await running.client.get(path)).json() == {"status": "ok", "stage": "ready", "percent": 100.0}


@pytest.mark.parametrize(
    ("broken", "mended", "stage"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "Redis takes no writes"),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "Redis takes no writes"),
        (
            ("ACL", "SETUSER", "one", "resetpass", ">another"),
            ("ACL", "SETUSER", "one", "resetpass", ">its-own"),
            "Redis refuses this gateway",
        ),
    ],
    ids=["full", "a replica", "another password"],
)
async def test_readiness_follows_what_redis_takes(
    serve: Serve, redis_url: str, broken: Sequence[str], mended: Sequence[str], stage: str
) -> None:
    """Reads, and pings of workers, are answered all the time."""
    admin = connect(redis_url)
    await admin.acl_setuser("one", enabled=True, passwords=["+its-own"], keys=["*"], categories=["+@all"])
    running = await serve("prefill", "decode", asked_at=redis_url.replace("unix://", "unix://one:its-own@"))

    async def said(code: int) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await running.client.get("/ready")).status_code != code:
                await asyncio.sleep(0.02)
        return answer.json()

    try:
        await admin.execute_command(*broken)  # type: ignore[no-untyped-call]
        await admin.client_kill_filter(_type="normal", skipme=True)
        assert (await said(503))["stage"] == stage
        assert (await running.client.get("/ping")).status_code == 200
        assert (await running.chat()).json()["error"]["code"] == "queue_unavailable"
    finally:
        await admin.execute_command(*mended)  # type: ignore[no-untyped-call]
        await admin.aclose()
    assert (await said(200))["stage"] == "ready"
    await running.idle()
    assert (await running.chat()).status_code == 200


async def test_a_prefill_worker_serves_while_no_decode_worker_is_there(serve: Serve) -> None:
    running = await serve("prefill")
    assert (await running.client.get("/health")).status_code == 200
    assert (await running.chat()).json()["choices"][0]["message"]["content"] == running.text
    await running.add("decode")
    assert (await running.chat()).json()["choices"][0]["message"]["content"] == running.text
    whole, split = await running.finished(2)
    prefill, decode = running.peer("prefill").epoch, running.peer("decode").epoch
    assert (whole.prefill_worker, whole.decode_worker) == ("", prefill)
    assert (split.prefill_worker, split.decode_worker) == (prefill, decode)


async def test_the_page(running: Running) -> None:
    answer = await running.client.get("/")
    assert answer.status_code == 200 and "text/html" in answer.headers["content-type"]
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        assert f"<code>POST {path}</code>" in answer.text
    for link in ("/v1/models", "/health", "/stats", "/metrics"):
        assert f'href="{link}"' in answer.text
        assert (await running.client.get(link)).status_code == 200


async def test_the_context_is_the_shortest_limit(serve: Serve) -> None:
    running = await serve("prefill", max_model_len=200)
    await running.add("decode", max_model_len=100)
    assert (await running.client.get("/v1/models")).json()["data"][0]["max_model_len"] == 100
    assert (await running.post("/v1/completions", prompt=[5] * 50, max_tokens=51)).status_code == 400
    assert (await running.post("/v1/completions", prompt=[5] * 50, max_tokens=50)).status_code == 200


async def test_a_given_name_is_the_models(serve: Serve) -> None:
    running = await serve("decode", served_model_name="org/a-name")
    assert (await running.client.get("/v1/models/org/a-name")).json()["id"] == "org/a-name"
    assert (await running.chat(model="org/a-name")).json()["model"] == "org/a-name"
    assert (await running.chat(model="tiny")).status_code == 404


async def test_a_model_without_a_chat_template(serve: Serve, tmp_path: Path) -> None:
    running = await serve("decode", at=byte_level(tmp_path / "base", template=None))
    refusal = await running.chat()
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "no_chat_template")
    assert (await running.post("/v1/completions", prompt="a")).status_code == 200


async def test_a_template_that_refuses(serve: Serve, tmp_path: Path) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    running = await serve("decode", at=byte_level(tmp_path / "strict", template=template))
    refusal = await running.chat()
    assert refusal.status_code == 400 and "roles must alternate" in refusal.json()["error"]["message"]


async def test_workers_of_another_model_are_not_used(serve: Serve, tmp_path: Path) -> None:
    running = await serve("decode")
    other = await serve(at=byte_level(tmp_path / "other"))
    await asyncio.wait_for(other.gateway.discovery.poll(), DEADLINE_S)
    assert other.gateway.workers.get(running.peer("decode").epoch) is None
    assert (await other.chat()).status_code == 503


async def test_a_client_that_leaves_the_line_makes_room(serve: Serve) -> None:
    running = await serve("prefill", max_requests=1, max_waiting=1)
    decode = await running.add("decode", stalls_at=2)
    held, gone = asyncio.create_task(running.chat()), asyncio.create_task(running.chat())
    await until(lambda: len(running.gateway.requests) == 2, "one in progress, one in line")
    assert (await running.chat()).status_code == 429
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await until(lambda: len(running.gateway.requests) == 1, "the other to leave")
    waiting = asyncio.create_task(running.chat())
    await until(lambda: len(running.gateway.requests) == 2, "another in line")
    assert 'baton:requests_waiting{model_name="tiny"} 1.0' in (await running.client.get("/metrics")).text
    decode.faults.clear()
    held.cancel()
    assert (await waiting).status_code == 200, "whoever is in progress and leaves makes room as well"
    await asyncio.gather(held, return_exceptions=True)


async def test_values_are_counted_before_they_are_decoded(running: Running) -> None:
    ids = b'{"prompt": [' + b"1," * (MAX_PROMPTS * CONTEXT_TOKENS + MAX_VALUES_WITHOUT_IDS) + b"1]}"
    messages = b'{"messages": [' + b",".join([b'{"role": "user", "content": ""}'] * 100_000) + b"]}"
    no_prompt = (
        b'{"stop_token_ids": [' + b"1," * MAX_VALUES_WITHOUT_IDS + b"1]}"
    )  # which only prompts may have so many of
    chat = "/v1/chat/completions"
    for path, body in (("/v1/completions", ids), (chat, messages), (chat, no_prompt)):
        answer = await running.client.post(path, content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_values")
    full = [[5] * (CONTEXT_TOKENS - 1)] * MAX_PROMPTS
    assert (await running.post("/v1/completions", prompt=full)).status_code == 200


GUESSES = SpeculationCounts(works=100, guessed=20, proposed=60, accepted=(19, 10, 4), saved_seconds=0.5)
