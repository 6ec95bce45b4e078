"""Requests wait for a model that the launcher has unloaded, as long as they may, and are answered."""

import asyncio
import re
from pathlib import Path

from gateway.requests.unloaded import LOADING, IdleTime
from tests.gateway.running import Serve, until


async def test_a_request_waits_for_an_unloaded_model(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "unloaded"
    file.write_text("unloaded")
    running = await serve(unloaded_file=str(file))
    assert running.gateway.idle_seconds() is None
    ready = await running.client.get("/ready")
    assert (ready.status_code, ready.json()["stage"]) == (200, "unloaded")
    hurried = await running.client.post("/v1/completions", json={"prompt": "a"}, headers={"x-slo-ttft-ms": "200"})
    error = hurried.json()["error"]
    assert (hurried.status_code, error["code"], hurried.headers["retry-after"]) == (503, "no_workers", "5")
    assert "--idle-unload" in error["message"] and "0.2 s" in error["message"]

    waiting = asyncio.create_task(running.chat(max_tokens=3))
    await until(lambda: running.gateway.unloaded.waiting == 1, "a request that waits")
    assert (await running.client.get("/load")).json() == {"server_load": 1}
    assert (await running.client.get("/stats")).json()["unloaded"] == "unloaded"
    assert 'baton:model_unloaded{model_name="tiny"} 1.0' in (await running.client.get("/metrics")).text
    assert running.gateway.idle_seconds() == 0.0, "the launcher is told, and loads it"
    file.unlink()
    assert running.gateway.unloaded.stage() == LOADING, "no worker is connected yet"
    await running.add("prefill")
    await running.add("decode")
    assert (await waiting).status_code == 200
    stats = (await running.client.get("/stats")).json()
    assert stats["unloaded"] == "" and sum(stats["judged"].values()) == 1
    assert re.search(r"^baton:model_unloaded\{.*\} 0.0$", (await running.client.get("/metrics")).text, re.MULTILINE)


async def test_at_a_shutdown_nobody_waits_for_the_model(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "unloaded").write_text("unloaded")
    running = await serve(unloaded_file=str(tmp_path / "unloaded"))
    waiting = asyncio.create_task(running.chat())
    await until(lambda: running.gateway.unloaded.waiting == 1, "a request that waits")
    await running.gateway.drain()
    assert (await waiting).json()["error"]["code"] == "shutting_down"


def test_idle_time_begins_with_the_end_of_the_last_request() -> None:
    idle = IdleTime()
    assert idle.look(0, 0, 10.0) is None
    assert idle.look(0, 3, 20.0) == 0.0, "requests came and went since the last look"
    assert idle.look(0, 3, 25.0) == 5.0
    assert idle.look(1, 3, 30.0) == 0.0 and idle.look(0, 4, 31.0) == 0.0 and idle.look(0, 4, 33.0) == 2.0
