"""Ollama's official client against a gateway whose workers' tokens are known beforehand."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.gateway.models import HERMES, byte_level
from tests.gateway.running import TEXT, Running, Serve
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S

HI: list[Any] = [{"role": "user", "content": "Hi!"}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


@pytest.fixture
async def running(serve: Serve, tmp_path: Path) -> Running:
    """A gateway for a model that calls tools and thinks."""
    model = byte_level(tmp_path / "tiny", template=HERMES, vocabulary=443, max_position_embeddings=1024)
    return await serve("prefill", "decode", at=model)


@pytest.fixture
async def client(running: Running) -> AsyncIterator[ollama.AsyncClient]:
    client = ollama.AsyncClient(running.url, timeout=DEADLINE_S, verify=PLAIN)
    yield client
    await client._client.aclose()


def prompt_of(running: Running) -> str:
    return running.tokenizer.written(running.peer("prefill").jobs[-1].prompt.token_ids)


async def test_a_chat(running: Running, client: ollama.AsyncClient) -> None:
    whole = await client.chat("tiny:latest", HI)
    assert whole.message.content == TEXT and whole.message.role == "assistant" and whole.model == "tiny:latest"
    assert whole.done and whole.done_reason == "stop"
    tokens = len(running.tokenizer.encode(TEXT, special=False)) + 1
    assert (whole.eval_count, whole.prompt_eval_count) == (
        tokens,
        len(running.peer("prefill").jobs[-1].prompt.token_ids),
    )
    assert 0 < (whole.prompt_eval_duration or 0) < (whole.total_duration or 0)
    lines = [line async for line in await client.chat("tiny", HI, stream=True)]
    assert "".join(line.message.content or "" for line in lines) == TEXT and len(lines) > 5
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (lines[-1].eval_count, lines[-1].done_reason) == (tokens, "stop")
    cut = await client.chat("tiny", HI, options={"num_predict": 3})
    assert (cut.done_reason, cut.eval_count) == ("length", 3)
    assert (await client.chat("tiny", HI, options={"num_predict": 9999})).message.content == TEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_and_calls(running: Running, client: ollama.AsyncClient, stream: bool) -> None:
    def weather(city: str) -> str:
        """Tells the weather.

        Args:
          city: where
        """
        return city

    running.text = f"<think>Hm.</think>Let me see. {CALL}{CALL}"
    if stream:
        answer = await client.chat("tiny", HI, tools=[weather], think=True, stream=True)
        said = [line.message async for line in answer]
    else:
        said = [(await client.chat("tiny", HI, tools=[weather], think=True)).message]
    assert "".join(one.thinking or "" for one in said) == "Hm."
    assert "".join(one.content or "" for one in said).strip() == "Let me see."
    calls = [call.function for one in said for call in one.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [("weather", {"city": "Oslo"})] * 2
    assert '"city"' in prompt_of(running)
    running.text = "Rain."
    turns = [
        *HI,
        {"role": "assistant", "tool_calls": calls_of(said)},
        {"role": "tool", "tool_name": "weather", "content": "wet"},
    ]
    assert (await client.chat("tiny", turns, tools=[weather])).message.content == "Rain."
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>' in prompt_of(running)
    assert "<|im_start|>tool\nwet" in prompt_of(running)


def calls_of(said: list[ollama.Message]) -> list[ollama.Message.ToolCall]:
    return [call for one in said for call in one.tool_calls or ()]


async def test_options_and_forms_reach_the_worker(running: Running, client: ollama.AsyncClient) -> None:
    options = {
        "temperature": 0,
        "top_k": 5,
        "top_p": 0.5,
        "seed": 7,
        "repeat_penalty": 1.2,
        "num_ctx": 8192,
        "stop": ["fox"],
    }
    answer = await client.chat("tiny", HI, options=options, keep_alive="5m")
    assert answer.message.content == TEXT.partition("fox")[0]
    sampling = running.peer("prefill").jobs[-1].sampling
    found = [sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, sampling.repetition_penalty]
    assert found == [0, 5, 0.5, 7, 1.2] and not sampling.grammar
    forms: list[Any] = ["json", {"type": "object", "properties": {"a": {"type": "integer"}}}]
    for form in forms:
        await client.chat("tiny", HI, format=form, options={"num_predict": 1})
        assert running.peer("prefill").jobs[-1].sampling.grammar


async def test_prompts(running: Running, client: ollama.AsyncClient) -> None:
    running.text = "<think>Hm.</think>Fine."
    answer = await client.generate("tiny", "Hi!", system="Be brief.")
    assert (answer.response, answer.thinking) == ("Fine.", "Hm.")
    assert prompt_of(running).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!")
    running.text = TEXT
    raw = [line async for line in await client.generate("tiny", "Once", raw=True, stream=True)]
    assert "".join(line.response or "" for line in raw) == TEXT and raw[-1].done
    assert prompt_of(running) == "Once"
    assert (await client.generate("tiny")).done_reason == "load"
    assert (await client.chat("tiny")).done_reason == "load"


async def test_it_goes_on_with_an_answer_that_has_begun(running: Running, client: ollama.AsyncClient) -> None:
    await client.chat("tiny", [*HI, {"role": "assistant", "content": "The"}])
    assert prompt_of(running).endswith("<|im_start|>assistant\nThe")


async def test_the_oldest_turns_are_forgotten(running: Running, client: ollama.AsyncClient) -> None:
    turns = [{"role": role, "content": "word " * 60} for _ in range(9) for role in ("user", "assistant")] + HI
    assert (await client.chat("tiny", turns)).message.content == TEXT
    answer = await running.post("/api/chat", model="tiny", messages=turns, truncate=False)
    assert (answer.status_code, answer.json()["code"]) == (400, "context_length_exceeded")


async def test_what_there_is(running: Running, client: ollama.AsyncClient) -> None:
    (listed,) = (await client.list()).models
    (loaded,) = (await client.ps()).models
    assert (listed.model, loaded.model, loaded.context_length) == ("tiny", "tiny", 1024)
    assert listed.digest == loaded.digest and len(listed.digest or "") == 64
    shown = await client.show("tiny:latest")
    assert shown.capabilities == ["completion", "tools", "thinking"] and shown.template == HERMES
    assert shown.modelinfo is not None and 1024 in shown.modelinfo.values()
    version = (await running.client.get("/api/version")).json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4], "editors ask for this version at least"


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("chat", {"messages": [{**HI[0], "images": ["aGk="]}]}, "messages[0].images"),
        ("chat", {"messages": HI, "options": {"mirostat": 2}}, "mirostat"),
        ("chat", {"messages": HI, "options": {"temprature": 2}}, "options.temprature"),
        ("chat", {"messages": HI, "logprobs": True}, "logprobs"),
        ("generate", {"prompt": "Hi!", "template": "{{ .Prompt }}"}, "template"),
        ("generate", {"prompt": "Hi!", "context": [1, 2]}, "context"),
        ("generate", {"prompt": "Hi!", "raw": True, "system": "Be."}, "system"),
        ("generate", {"prompt": "Hi!", "raw": True, "options": {"num_predict": 99999}}, "options.num_predict"),
    ],
)
async def test_what_is_wrong_is_named(running: Running, path: str, fields: dict[str, Any], named: str) -> None:
    answer = await running.post(f"/api/{path}", model="tiny", **fields)
    assert answer.status_code == 400 and named in answer.json()["error"]


async def test_unknown_models_and_absent_endpoints(running: Running, client: ollama.AsyncClient) -> None:
    for ask in (client.chat("other", HI), client.generate("other"), client.show("other"), client.pull("other")):
        with pytest.raises(ollama.ResponseError) as caught:
            await ask
        assert caught.value.status_code == 404
    assert "the model is chosen when the server starts" in caught.value.error


async def test_a_stream_that_fails_says_so(running: Running, client: ollama.AsyncClient) -> None:
    running.peer("decode").faults["stalls_at"] = 3
    stream = await client.chat("tiny", HI, stream=True)
    assert not (await anext(stream)).done
    await running.peer("decode").fail_all("broken")
    with pytest.raises(ollama.ResponseError, match="a sentence"):
        async for _ in stream:
            pass
