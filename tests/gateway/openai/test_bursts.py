"""Several tokens of one step, as speculation gives them, leave as one event; counts, scores and ends are those of one
token a step."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.running import TEXT, Running, Serve

BURST_TOKENS = 4
CHATS = "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "Hi!"}]}
USAGE = {"include_usage": True, "continuous_usage_stats": True}


BURSTS = (1, BURST_TOKENS)


async def slow_and_fast(serve: Serve) -> AsyncIterator[Running]:
    """Yields one system twice: its worker gives a token a step, and then several."""
    running = await serve()
    peer = await running.add("decode")
    for burst in BURSTS:
        peer.faults["burst"] = burst
        yield running


def tokens_of(running: Running) -> int:
    return len(running.answer(running.peer("decode").jobs[0], 0))


async def chunks(running: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    async with running.client.stream("POST", path, json={"stream": True, **body}) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def said(events: list[dict[str, Any]]) -> list[str]:
    texts = [event["choices"][0].get("delta", {}).get("content") for event in events if event["choices"]]
    return [text for text in texts if text]


async def test_a_step_is_one_event(serve: Serve) -> None:
    texts = [said(await chunks(running, CHATS, **CHAT)) async for running in slow_and_fast(serve)]
    assert ["".join(each) for each in texts] == [TEXT, TEXT]
    assert len(texts[1]) <= -(-len(texts[0]) // BURST_TOKENS) + 1


async def test_usage_counts_every_token_as_it_is_passed_on(serve: Serve) -> None:
    ended = []
    async for running in slow_and_fast(serve):
        events = await chunks(running, CHATS, **CHAT, stream_options=USAGE, return_token_ids=True)
        count = 0
        for event in events[:-1]:
            count += len(event["choices"][0].get("token_ids") or ())
            assert event["usage"]["completion_tokens"] == count
        assert count == tokens_of(running)
        ended.append(events[-1]["usage"])
        assert events[-1]["usage"]["completion_tokens"] == count
    assert ended[0] == ended[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_scores_are_those_of_each_token(serve: Serve, stream: bool) -> None:
    found = []
    async for running in slow_and_fast(serve):
        wish = {**CHAT, "logprobs": True, "top_logprobs": 2}
        if stream:
            events = await chunks(running, CHATS, **wish)
            scores = [event["choices"][0]["logprobs"] for event in events]
            found.append([entry for each in scores if each for entry in each["content"]])
        else:
            answer = await running.post(CHATS, **wish)
            found.append(answer.json()["choices"][0]["logprobs"]["content"])
    assert found[0] == found[1] and len(found[0]) > 10


@pytest.mark.parametrize("wish", [{"stop": ["fox"]}, {"stop": ["n f", "The qu"]}, {"max_tokens": 7}])
async def test_ends_are_the_same(serve: Serve, wish: dict[str, Any]) -> None:
    found = []
    async for running in slow_and_fast(serve):
        events = await chunks(running, CHATS, **CHAT, **wish, stream_options={"include_usage": True})
        last = events[-2]["choices"][0]
        found.append(("".join(said(events)), last["finish_reason"], last["stop_reason"], events[-1]["usage"]))
    assert found[0] == found[1]
    assert 0 < found[0][3]["completion_tokens"] < 40 and len(found[0][0]) < len(TEXT)


async def test_times_between_tokens_are_counted_for_each(serve: Serve) -> None:
    name = "vllm:inter_token_latency_seconds_count"
    counts = []
    async for running in slow_and_fast(serve):
        await chunks(running, CHATS, **CHAT)
        page = (await running.client.get("/metrics")).text
        (line,) = [line for line in page.splitlines() if line.startswith(name)]
        counts.append(float(line.split()[-1]))
    assert counts == [tokens_of(running) - 1, 2 * (tokens_of(running) - 1)]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages"])
async def test_other_apis_say_the_same(serve: Serve, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "Hi!"},
        "/v1/responses": {"input": "Hi!", "store": False},
        "/v1/messages": {**CHAT, "max_tokens": 200},
    }
    texts, events = [], []
    async for running in slow_and_fast(serve):
        wish = {**bodies[path], "model": running.gateway.model, "stream": True}
        async with running.client.stream("POST", path, json=wish) as answer:
            lines = [json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: {")]
        deltas = [_text(line) for line in lines]
        texts.append("".join(deltas))
        events.append(sum(map(bool, deltas)))
    assert texts[0] == texts[1] != "" and events[1] < events[0]


def _text(event: dict[str, Any]) -> str:
    if event.get("choices"):
        return str(event["choices"][0]["text"])
    delta = event.get("delta")
    if isinstance(delta, str) and event["type"] == "response.output_text.delta":
        return delta
    return str(delta.get("text", "")) if isinstance(delta, dict) else ""
