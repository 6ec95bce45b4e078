"""A call that is cut short leaves no markup in the answer, whichever API is asked, in a stream or at once."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.gateway.running import Running

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"name": "weather", "parameters": SCHEMA}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
QUESTION = [{"role": "user", "content": "Hi!"}]
MODEL = "calling"
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": QUESTION, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/responses": {"input": "Hi!", "tools": [{"type": "function", **FUNCTION}], "store": False},
    "/v1/messages": {"messages": QUESTION, "model": MODEL, "tools": [{"name": "weather", "input_schema": SCHEMA}]},
}
KINDS = ('"tool_calls":', '"type":"function_call"', '"type":"tool_use"')
REQUIRED = {"/v1/messages": {"type": "any"}}


def texts(found: Any) -> list[str]:
    if isinstance(found, list):
        return [text for each in found for text in texts(each)]
    if not isinstance(found, dict):
        return []
    told = [
        found[key] for key in ("content", "text", "reasoning_content", "thinking") if isinstance(found.get(key), str)
    ]
    told += [found["delta"]] if found.get("type") == "response.output_text.delta" else []
    return told + [text for value in found.values() for text in texts(value)]


def said(answer: httpx.Response) -> str:
    if "event-stream" not in answer.headers["content-type"]:
        return "".join(texts(answer.json()))
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(text for line in lines for text in texts(json.loads(line)))


@pytest.mark.parametrize("stream", [False, True], ids=["at once", "stream"])
@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_call_that_is_cut_is_not_said(path: str, stream: bool, choice: str, calling: Running) -> None:
    calling.text = CALL
    length = len(calling.tokenizer.encode(CALL, special=False))

    async def asked(limit: int) -> httpx.Response:
        chosen = {"tool_choice": REQUIRED.get(path, choice)} if choice == "required" else {}
        limited = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": limit}
        return await calling.post(path, **APIS[path], **chosen, **limited, stream=stream)

    answers = await asyncio.gather(*[asked(limit) for limit in range(1, length, 3)])
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert [said(answer) for answer in answers] == [""] * len(answers)
    called = [any(kind in answer.text for kind in KINDS) for answer in answers]
    assert True in called and False in called, "some are cut behind a call's name"


async def test_thoughts_that_are_cut_have_no_half_of_a_marker(calling: Running) -> None:
    calling.text = "<think>Hm.</think>Well."
    length = len(calling.tokenizer.encode(calling.text, special=False))
    answers = await asyncio.gather(*[calling.chat(max_tokens=limit) for limit in range(1, length)])
    messages = [answer.json()["choices"][0]["message"] for answer in answers]
    assert all("Hm.".startswith(message.get("reasoning_content") or "") for message in messages)
    assert all("Well.".startswith(message["content"] or "") for message in messages)
