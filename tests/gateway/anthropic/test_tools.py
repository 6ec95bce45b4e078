"""Tools and thoughts with Anthropic's official client, down to its own loop that runs the tools."""

from typing import Any

import anthropic
import pytest
from anthropic import beta_async_tool
from pydantic import BaseModel

from tests.gateway.anthropic.test_endpoint import HI, client, model
from tests.gateway.running import Running

__all__ = ["client"]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
TOOL: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def running(calling: Running) -> Running:
    return calling


async def test_a_call_whole_and_in_events(running: Running, client: anthropic.AsyncAnthropic) -> None:
    running.text = f"<think>\nI look it up.</think>I ask.\n{CALL}\n{CALL}"
    asked: Any = {"model": model(running), "max_tokens": 900, "messages": HI, "tools": [TOOL]}
    whole = await client.messages.create(**asked)
    thought, text, *calls = whole.content
    assert thought.type == "thinking" and "look it up" in thought.thinking and thought.signature
    assert text.type == "text" and text.text.strip() == "I ask."
    assert [(call.type, getattr(call, "input", None)) for call in calls] == [("tool_use", {"city": "Bonn"})] * 2
    assert whole.stop_reason == "tool_use"
    async with client.messages.stream(**asked) as stream:
        final = await stream.get_final_message()
    bare = [block.to_dict() | {"id": "", "parsed_output": None} for block in final.content]
    assert bare == [block.to_dict() | {"id": "", "parsed_output": None} for block in whole.content]
    assert final.stop_reason == "tool_use"


async def test_its_own_loop_runs_the_tool(running: Running, client: anthropic.AsyncAnthropic) -> None:
    cities = []

    async def weather(city: str) -> str:
        """Tells the weather."""
        cities.append(city)
        running.text = "It is sunny in Bonn."
        return "sunny"

    running.text = CALL
    tool = beta_async_tool(weather)
    runner = client.beta.messages.tool_runner(
        model=model(running), max_tokens=500, tools=[tool], messages=[{"role": "user", "content": "Weather?"}]
    )
    final = await runner.until_done()
    (block,) = final.content
    assert block.type == "text" and block.text == "It is sunny in Bonn." and cities == ["Bonn"]
    _, second = running.peer("prefill").jobs
    prompt = running.tokenizer.written(second.prompt.token_ids)
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>' in prompt
    assert "<|im_start|>tool\nsunny<|im_end|>" in prompt


async def test_a_tool_that_has_to_be_called_is_constrained(running: Running, client: anthropic.AsyncAnthropic) -> None:
    running.text = CALL
    asked: Any = {"model": model(running), "max_tokens": 500, "messages": HI, "tools": [TOOL]}
    await client.messages.create(**asked, tool_choice={"type": "tool", "name": "weather"})
    await client.messages.create(**asked, tool_choice={"type": "none"})
    constrained, free = running.peer("prefill").jobs
    assert '"city"' in constrained.sampling.grammar and free.sampling.grammar == ""
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        await client.messages.create(**asked, tool_choice={"type": "tool", "name": "another"})


async def test_json_by_a_schema(running: Running, client: anthropic.AsyncAnthropic) -> None:
    class City(BaseModel):
        name: str

    running.text = '{"name": "Bonn"}'
    message = await client.messages.parse(model=model(running), max_tokens=99, messages=HI, output_format=City)
    assert message.parsed_output == City(name="Bonn")
    assert '"name"' in running.peer("prefill").jobs[0].sampling.grammar


async def test_tools_count(running: Running, client: anthropic.AsyncAnthropic) -> None:
    bare = await client.messages.count_tokens(model=model(running), messages=HI)
    told = await client.messages.count_tokens(model=model(running), messages=HI, tools=[TOOL])
    assert told.input_tokens > bare.input_tokens + 20
