"""OpenAI's official client on the Responses API, against a gateway whose workers' tokens are known beforehand."""

from typing import Any, NoReturn

import openai
import pytest

from contracts.errors import StoreUnavailable
from infra.redis.stored import ALL_KEY, TenantStore
from tests.gateway.conftest import SECRET
from tests.gateway.running import TEXT, Running, Serve, until


async def test_a_response(running: Running) -> None:
    response = await running.openai.responses.create(model=running.gateway.model, input="Hi!", metadata={"a": "b"})
    assert response.output_text == TEXT and response.status == "completed" and response.error is None
    assert response.id.startswith("resp_") and response.metadata == {"a": "b"}
    assert response.model == running.gateway.model and response.completed_at is not None
    assert response.usage is not None
    assert response.usage.output_tokens == len(running.tokenizer.encode(TEXT, special=False)) + 1
    counted = await running.openai.responses.input_tokens.count(model=running.gateway.model, input="Hi!")
    assert response.usage.input_tokens == counted.input_tokens > 0


async def test_a_stream_adds_up_to_the_response(running: Running) -> None:
    kinds, texts = [], []
    async with running.openai.responses.stream(model=running.gateway.model, input="Hi!") as stream:
        async for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                texts.append(event.delta)
        response = await stream.get_final_response()
    assert "".join(texts) == response.output_text == TEXT and len(texts) > 5
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    stored = await running.openai.responses.retrieve(response.id)
    assert stored.output_text == TEXT and stored.id == response.id, "it is there when the stream ends"


async def test_what_is_cut_off_is_incomplete(running: Running) -> None:
    response = await running.openai.responses.create(model=running.gateway.model, input="Hi!", max_output_tokens=3)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    stream: Any = await running.openai.responses.create(
        model=running.gateway.model, input="Hi!", max_output_tokens=3, stream=True
    )
    assert [event.type async for event in stream][-1] == "response.incomplete"


async def test_another_gateway_goes_on_from_a_response(serve: Serve) -> None:
    one, two = await serve("prefill", "decode"), await serve()
    await two.gateway.discovery.poll()
    await until(
        lambda: len([each for each in two.gateway.workers if each.usable]) == 2, "the other to know both workers"
    )
    name = one.gateway.model
    one.text = "Hello."
    first = await one.openai.responses.create(model=name, input="Hi!", instructions="Be brief.", max_output_tokens=100)
    second = await two.openai.responses.create(model=name, input="And?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    said = [
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And?"},
    ]
    assert (await two.post("/v1/chat/completions", messages=said)).is_success
    _, second_job, told = one.peer("prefill").jobs
    assert second_job.prompt.token_ids == told.prompt.token_ids, "instructions are of one response only"
    items = await one.openai.responses.input_items.list(second.id, order="asc")
    texts = [item.content[0].text for item in items.data]
    assert texts == ["Hi!", "Hello.", "And?"] and len({item.id for item in items.data}) == 3
    pages = {limit: await two.openai.responses.input_items.list(second.id, limit=limit) for limit in (2, 3, 4)}
    more = {limit: page.has_more for limit, page in pages.items()}
    assert more == {2: True, 3: False, 4: False}
    newest = [item async for item in two.openai.responses.input_items.list(second.id, limit=1)]
    assert [item.content[0].text for item in newest] == ["And?", "Hello.", "Hi!"]


async def test_a_response_can_be_deleted(running: Running) -> None:
    response = await running.openai.responses.create(model=running.gateway.model, input="Hi!")
    with pytest.raises(openai.BadRequestError, match="is done"):
        await running.openai.responses.cancel(response.id)
    answer = await running.client.delete(f"/v1/responses/{response.id}", headers={"authorization": "Bearer none"})
    assert answer.json() == {"id": response.id, "object": "response", "deleted": True}
    for ask in (running.openai.responses.retrieve, running.openai.responses.delete, running.openai.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            await ask(response.id)


async def test_what_is_not_to_be_stored_is_not(running: Running) -> None:
    response = await running.openai.responses.create(model=running.gateway.model, input="Hi!", store=False)
    assert response.to_dict()["store"] is False
    assert await running.store.keys(f"{ALL_KEY}*") == []


async def test_storing_can_be_switched_off(serve: Serve) -> None:
    running = await serve("prefill", "decode", store_ttl=0)
    response = await running.openai.responses.create(model=running.gateway.model, input="Hi!")
    assert response.output_text == TEXT and response.to_dict()["store"] is False
    with pytest.raises(openai.BadRequestError) as caught:
        await running.openai.responses.create(
            model=running.gateway.model, input="And?", previous_response_id=response.id
        )
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "previous_response_id")


async def test_a_response_that_is_too_large_is_answered_and_not_stored(serve: Serve) -> None:
    running = await serve("prefill", "decode", store_bytes=16 * 4096)
    running.text = "x" * 20
    small = await running.openai.responses.create(model=running.gateway.model, input="Hi!")
    assert small.to_dict()["store"] is True
    large = await running.openai.responses.create(
        model=running.gateway.model, input="Hi!", metadata={str(n): "x" * 500 for n in range(16)}
    )
    assert large.output_text == running.text and large.to_dict()["store"] is False
    assert len(await running.store.keys(f"{ALL_KEY}:*:*")) == 1


async def test_a_response_is_answered_while_nothing_can_be_stored(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = await running.openai.responses.create(model=running.gateway.model, input="Hi!")

    async def away(*args: Any) -> NoReturn:
        raise StoreUnavailable("Redis is away")

    for ask in ("put", "get", "delete"):
        monkeypatch.setattr(TenantStore, ask, away)
    for _ in range(2):
        response = await running.openai.responses.create(model=running.gateway.model, input="Hi!")
        assert response.output_text == TEXT and response.to_dict()["store"] is False
    assert caplog.text.count("responses are answered and not stored") == 1
    for ask_for in (
        running.openai.responses.retrieve(kept.id),
        running.openai.responses.delete(kept.id),
        running.openai.responses.create(model=running.gateway.model, input="Hi!", previous_response_id=kept.id),
    ):
        with pytest.raises(openai.InternalServerError) as caught:
            await ask_for
        assert (caught.value.status_code, caught.value.code) == (503, "store_unavailable")
        assert int(caught.value.response.headers["retry-after"]) > 0


async def test_what_another_version_has_stored_is_not_there(running: Running) -> None:
    mine = running.openai
    response = await mine.responses.create(model=running.gateway.model, input="Hi!")
    tenant = running.peer("prefill").jobs[0].prompt.salt
    store = TenantStore(running.store, SECRET.encode(), 60.0, 1 << 20)
    await store.put(tenant, response.id, b'{"response": {"id": 5}}', 1e12)
    with pytest.raises(openai.NotFoundError):
        await mine.responses.retrieve(response.id)


async def test_redis_shows_nothing_of_a_stored_response(running: Running) -> None:
    mine = running.openai.with_options(api_key="my-own-key")
    response = await mine.responses.create(model=running.gateway.model, input="My elephant is purple.")
    keys: list[Any] = await running.store.keys("*")
    found: list[Any] = list(keys)
    for key in keys:
        kind = await running.store.type(key)
        if kind == b"string":
            found.append(await running.store.get(key))
        elif kind == b"zset":
            found += await running.store.zrange(key, 0, -1)
    dump = b"\n".join(found)
    assert dump.count(ALL_KEY.encode()) > 3
    secrets = (b"elephant", b"quick brown", response.id.encode(), b"my-own-key")
    assert [secret for secret in secrets if secret in dump] == []


async def test_an_id_tells_of_no_other(running: Running) -> None:
    first, second = [await running.openai.responses.create(model=running.gateway.model, input="Hi!") for _ in range(2)]
    assert first.id.rpartition("_")[2] != second.id.rpartition("_")[2]


async def test_a_stream_that_fails_says_so(running: Running) -> None:
    running.peer("decode").faults["stalls_at"] = 3
    stream: Any = await running.openai.responses.create(model=running.gateway.model, input="Hi!", stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await running.peer("decode").fail_all("broken")
    *_, last = [event async for event in stream]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error.code == "server_error" and last.response.error.message
    assert await running.store.keys(f"{ALL_KEY}*") == []


async def test_errors_name_the_clients_field(running: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await running.openai.responses.create(model=running.gateway.model, input="word " * 999)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError) as caught:
        await running.openai.responses.create(model=running.gateway.model, input="Hi!", max_output_tokens=300)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_output_tokens")
    assert "max_output_tokens" in caught.value.message and "completion" not in caught.value.message
    for query in ({"limit": "0"}, {"limit": "x"}, {"limit": "1" * 5000}, {"order": "up"}, {"after": "nobody"}):
        response = await running.openai.responses.create(model=running.gateway.model, input="Hi!")
        headers = {"authorization": "Bearer none"}
        path = f"/v1/responses/{response.id}/input_items"
        answer = await running.client.get(path, params=query, headers=headers)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == next(iter(query))
    answer = await running.client.get(f"/v1/responses/{response.id}", params={"stream": "true"}, headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "stream"
