"""Anthropic's official client reads the models as its own API gives them; others see no field of that."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import anthropic
import pytest
from msgspec import structs

from contracts.adapters import HeldAdapter
from tests.gateway.running import Running, Serve
from tests.plain_http import PLAIN

OWN = {"type", "display_name", "created_at", "lifecycle", "max_input_tokens", "max_tokens"}
ASKED = {"anthropic-version": "2023-06-01"}


@pytest.fixture
async def client(running: Running) -> AsyncIterator[anthropic.AsyncAnthropic]:
    http = anthropic.DefaultAsyncHttpxClient(verify=PLAIN)
    async with anthropic.AsyncAnthropic(
        base_url=running.url, api_key="mine", max_retries=0, http_client=http, _strict_response_validation=True
    ) as client:
        yield client


async def with_adapters(running: Running, *names: str) -> None:
    peer = running.peer("decode")
    held = tuple(HeldAdapter(name, name, digest=name * 32) for name in names)
    peer.record = structs.replace(peer.record, adapters=held)
    await peer.beat()
    await running.gateway.discovery.poll()


async def test_a_model_as_anthropics_client_reads_it(running: Running, client: anthropic.AsyncAnthropic) -> None:
    page = await client.models.list()
    (model,) = page.data
    assert (page.has_more, page.first_id, page.last_id) == (False, "tiny", "tiny")
    assert (model.type, model.id, model.display_name, model.lifecycle) == ("model", "tiny", "tiny", "active")
    assert model.created_at == datetime.fromtimestamp(running.gateway.created, UTC)
    assert (model.max_input_tokens, model.max_tokens) == (256, 256)
    assert await client.models.retrieve("tiny") == model
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.models.retrieve("nothing")
    body: Any = missing.value.body
    assert body["type"] == "error" and body["error"]["type"] == "not_found_error" and missing.value.request_id


async def test_who_asks_for_openais_gets_openais(running: Running) -> None:
    (model,) = [model async for model in running.openai.models.list()]
    raw = (await running.client.get("/v1/models")).json()
    assert set(raw) == {"object", "data"} and OWN.isdisjoint(raw["data"][0]) and model.id == "tiny"
    assert set((await running.client.get("/v1/models", headers=ASKED)).json()["data"][0]) == OWN | set(raw["data"][0])
    assert set((await running.client.get("/v1/models/nothing")).json()) == {"error"}


@pytest.mark.parametrize(
    ("asked", "ids", "more"),
    [
        ({}, ["tiny", "a", "b", "c"], False),
        ({"limit": 2}, ["tiny", "a"], True),
        ({"limit": 2, "after_id": "a"}, ["b", "c"], False),
        ({"limit": 2, "before_id": "c"}, ["a", "b"], True),
        ({"after_id": "c"}, [], False),
    ],
)
async def test_pages_of_models(
    asked: dict[str, Any], ids: list[str], more: bool, running: Running, client: anthropic.AsyncAnthropic
) -> None:
    await with_adapters(running, "a", "b", "c")
    page = await client.models.list(**asked)
    assert ([model.id for model in page.data], page.has_more) == (ids, more)
    assert [model.id async for model in client.models.list(limit=1)] == ["tiny", "a", "b", "c"]


@pytest.mark.parametrize("asked", [{"limit": "0"}, {"limit": "x"}, {"limit": "1" * 5000}, {"after_id": "nothing"}])
async def test_pages_that_cannot_be(asked: dict[str, str], running: Running) -> None:
    answer = await running.client.get("/v1/models", params=asked, headers=ASKED)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
    assert next(iter(asked)) in answer.json()["error"]["message"]


async def test_each_served_name_is_listed_and_an_answer_has_the_name_that_was_asked(serve: Serve) -> None:
    running = await serve("prefill", "decode", served_model_name="tiny,gpt-4o,claude-sonnet")
    await with_adapters(running, "gpt-4o", "a")
    listed = (await running.client.get("/v1/models")).json()["data"]
    assert [(model["id"], model.get("parent")) for model in listed] == [
        ("tiny", None),
        ("gpt-4o", None),
        ("claude-sonnet", None),
        ("a", "tiny"),
    ]
    assert (await running.client.get("/v1/models/gpt-4o")).json()["root"] == "tiny"
    for path, field in (("chat/completions", "messages"), ("completions", "prompt"), ("messages", "messages")):
        for name in ("tiny", "gpt-4o", "claude-sonnet"):
            asked = [{"role": "user", "content": "a"}] if field == "messages" else "a"
            body = {"model": name, field: asked, "max_tokens": 2}
            answered = await running.client.post(f"/v1/{path}", json=body)
            assert (answered.status_code, answered.json()["model"]) == (200, name)
    refused = await running.client.post("/v1/completions", json={"model": "gpt-5", "prompt": "a"})
    assert refused.status_code == 404 and "'gpt-5' does not exist; this server has 'tiny'" in refused.text
