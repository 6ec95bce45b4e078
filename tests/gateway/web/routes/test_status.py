"""What can be asked without a prompt: models, versions, load, the gateway's own facts."""

import asyncio
import tomllib
from pathlib import Path

from contracts.version import BATON_VERSION
from tests.gateway.running import Running, Serve, until

ROOT = Path(__file__).resolve().parents[4]


async def test_the_version_is_the_projects(running: Running) -> None:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (await running.client.get("/version")).json() == {"version": written} == {"version": BATON_VERSION}


async def test_ping_answers_whatever_the_workers_do(serve: Serve) -> None:
    running = await serve()
    for method in ("GET", "POST"):
        answer = await running.client.request(method, "/ping")
        assert (answer.status_code, answer.json()) == (200, {})


async def test_a_model_has_what_vllms_has(serve: Serve) -> None:
    running = await serve("decode", served_model_name="another-name")
    (model,) = (await running.client.get("/v1/models")).json()["data"]
    assert (model["id"], model["root"], model["parent"], model["max_model_len"]) == ("another-name", "tiny", None, 256)
    (permission,) = model["permission"]
    assert permission["allow_sampling"] and not permission["allow_fine_tuning"]
    assert permission["object"] == "model_permission" and permission["created"] == model["created"]


async def test_load_counts_answers_in_progress(serve: Serve) -> None:
    running = await serve("prefill")
    await running.add("decode", stalls_at=2)
    assert (await running.client.get("/load")).json() == {"server_load": 0}
    held = asyncio.create_task(running.chat(n=3))
    await until(lambda: len(running.gateway.requests) == 3, "three answers")
    assert (await running.client.get("/load")).json() == {"server_load": 3}
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    await running.idle()
    assert (await running.client.get("/load")).json() == {"server_load": 0}


async def test_the_gateways_facts_hold_no_secret(serve: Serve) -> None:
    running = await serve("decode", max_requests=77)
    facts = (await running.client.get("/stats")).json()["gateway"]
    assert (facts["model"], facts["max_model_len"], facts["settings"]["max_requests"]) == ("tiny", 256, 77)
    assert facts["versions"]["baton"] == BATON_VERSION and facts["settings"]["spelled_tokens"] == "text"
    config = running.gateway.config
    told = str(facts)
    assert config.store.redis not in told and str(config.store.secret_file) not in told and config.model not in told
