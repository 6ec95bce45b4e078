"""Anthropic's official client, with its defaults, against a gateway whose workers' tokens are known beforehand."""

import re
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest

from gateway.openai.answers import replies
from tests.gateway.running import TEXT, Running
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S

HI: list[Any] = [{"role": "user", "content": "Hi!"}]


@pytest.fixture
async def client(running: Running) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=running.url,
        api_key="mine",
        max_retries=0,
        timeout=DEADLINE_S,
        http_client=anthropic.DefaultAsyncHttpxClient(verify=PLAIN),
    ) as client:
        yield client


def model(running: Running) -> str:
    return running.gateway.model


async def test_a_message(running: Running, client: anthropic.AsyncAnthropic) -> None:
    message = await client.messages.create(model=model(running), max_tokens=200, messages=HI)
    (block,) = message.content
    assert block.type == "text" and block.text == TEXT
    assert message.role == "assistant" and message.model == model(running)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    tokens = len(running.tokenizer.encode(TEXT, special=False)) + 1
    assert message.usage.output_tokens == tokens
    counted = await client.messages.count_tokens(model=model(running), messages=HI)
    assert message.usage.input_tokens == counted.input_tokens > 0


async def test_fields_that_anthropic_omits_are_not_null(running: Running) -> None:
    running.text = "Hi."
    body = {"model": model(running), "max_tokens": 20, "messages": HI}
    whole = (await running.post("/v1/messages", **body)).json()
    assert whole["content"] == [{"type": "text", "text": "Hi."}]
    assert {name for name, value in whole.items() if value is None} == {"stop_sequence", "stop_details"}
    stream = (await running.post("/v1/messages", **body, stream=True)).text
    assert '"content_block":{"type":"text","text":""}' in stream and "citations" not in stream


async def test_a_stream_adds_up_to_the_message(running: Running, client: anthropic.AsyncAnthropic) -> None:
    whole = await client.messages.create(model=model(running), max_tokens=200, messages=HI)
    texts, kinds = [], []
    async with client.messages.stream(model=model(running), max_tokens=200, messages=HI) as stream:
        async for event in stream:
            kinds.append(event.type)
            if event.type == "text":
                texts.append(event.text)
        message = await stream.get_final_message()
    assert "".join(texts) == TEXT and len(texts) > 5
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    apart = {"id", "parsed_output"}
    assert _without(message.to_dict(), apart) == _without(whole.to_dict(), apart)


async def test_why_it_ended(running: Running, client: anthropic.AsyncAnthropic) -> None:
    short = await client.messages.create(model=model(running), max_tokens=3, messages=HI)
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 3
    stopped = await client.messages.create(
        model=model(running), max_tokens=99, messages=HI, stop_sequences=["fox", "no"]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "fox")
    running.text = "word " * 400
    filled = await client.messages.create(model=model(running), max_tokens=32_000, messages=HI)
    assert filled.stop_reason == "model_context_window_exceeded", "agents ask for more than a small model has"
    usage = filled.usage
    assert usage.input_tokens + usage.output_tokens == 256


async def test_errors_have_its_form(running: Running, client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(model="another", max_tokens=3, messages=HI)
    body: Any = missing.value.body
    assert body["type"] == "error" and body["error"]["type"] == "not_found_error"
    assert "another" in body["error"]["message"] and missing.value.request_id
    assert missing.value.error_code == "model_not_found"
    image: list[Any] = [{"role": "user", "content": [{"type": "image"}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
        await client.messages.create(model=model(running), max_tokens=3, messages=image)


async def test_a_prompt_that_is_too_long_is_said_in_its_words(
    running: Running, client: anthropic.AsyncAnthropic
) -> None:
    """Agents look for these words, and shorten the conversation by these numbers."""
    for words in (150, 999):  # of the longer prompt the length alone is looked at
        turns: list[Any] = [{"role": "user", "content": "word " * words}]
        counted = await client.messages.count_tokens(model=model(running), messages=turns)
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(model=model(running), max_tokens=3, messages=turns)
        body: Any = caught.value.body
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["details"]["error_code"] == "context_length_exceeded"
        found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", body["error"]["message"])
        assert found is not None and int(found[2]) == 255 < int(found[1]) <= counted.input_tokens
        assert words == 999 or int(found[1]) == counted.input_tokens
    told = (await running.post("/v1/chat/completions", messages=turns)).json()["error"]["message"]
    assert "maximum context length is 256" in told


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("bash_20250124", "known to Claude alone"),
        ("text_editor_20250728", "known to Claude alone"),
        ("computer_20250124", "known to Claude alone"),
        ("memory_20250818", "known to Claude alone"),
        ("web_search_20250305", "runs no tools"),
        ("code_execution_20250825", "runs no tools"),
    ],
)
async def test_tools_that_anthropic_defines_are_refused_for_what_they_are(
    kind: str, why: str, running: Running, client: anthropic.AsyncAnthropic
) -> None:
    tools: Any = [{"type": kind, "name": "tool"}]
    with pytest.raises(anthropic.BadRequestError, match=rf"'{kind}' is not supported, for .*{why}; describe yours"):
        await client.messages.create(model=model(running), max_tokens=3, messages=HI, tools=tools)


async def test_a_stream_that_fails_says_so(running: Running, client: anthropic.AsyncAnthropic) -> None:
    running.peer("decode").faults["stalls_at"] = 3
    with pytest.raises(anthropic.APIStatusError, match="a sentence") as caught:
        async with client.messages.stream(model=model(running), max_tokens=99, messages=HI) as stream:
            async for event in stream:
                if event.type == "content_block_start":
                    await running.peer("decode").fail_all("broken")
    body: Any = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "api_error" and body["request_id"]


async def test_a_silent_stream_pings(
    running: Running, client: anthropic.AsyncAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "KEEP_ALIVE_S", 0.05)
    running.peer("decode").faults["step"] = 0.2
    body = {"model": model(running), "max_tokens": 3, "messages": HI, "stream": True}
    async with running.client.stream("POST", "/v1/messages", json=body) as answer:
        text = (await answer.aread()).decode()
    assert 'event: ping\ndata: {"type":"ping"}\n\n' in text
    assert isinstance(answer, httpx.Response) and answer.headers["content-type"].startswith("text/event-stream")
    async with client.messages.stream(model=model(running), max_tokens=3, messages=HI) as stream:
        assert (await stream.get_final_message()).stop_reason == "max_tokens"


async def test_a_count_of_tokens_may_be_beyond_the_context(running: Running, client: anthropic.AsyncAnthropic) -> None:
    turns: list[Any] = [{"role": "user", "content": "word " * 999}]
    counted = await client.messages.count_tokens(model=model(running), messages=turns, system="Be brief.")
    assert counted.input_tokens > 999 and await running.jobs() == 0


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(one, names) for name, one in value.items() if name not in names}
    return [_without(one, names) for one in value] if isinstance(value, list) else value
