"""Tools, thoughts and forms on the Responses API, with OpenAI's official client."""

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.gateway.running import Running

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


async def test_a_call_whole_and_in_events(calling: Running) -> None:
    calling.text = f"<think>\nI look it up.</think>I ask.\n{CALL}\n{CALL}"
    asked: Any = {"model": calling.gateway.model, "input": "Weather?", "tools": [TOOL]}
    whole: Any = await calling.openai.responses.create(**asked)
    thought, text, *calls = whole.output
    assert thought.type == "reasoning" and "look it up" in thought.content[0].text
    assert text.type == "message" and text.content[0].text.strip() == "I ask."
    assert [(call.name, call.arguments) for call in calls] == [("weather", '{"city": "Bonn"}')] * 2
    assert len({call.call_id for call in calls}) == 2
    async with calling.openai.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final: Any = await stream.get_final_response()
    assert {"response.reasoning_text.delta", "response.function_call_arguments.delta"} <= set(kinds)
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert [item.arguments for item in final.output[2:]] == [call.arguments for call in calls]
    assert final.output[2].parsed_arguments == {"city": "Bonn"}


async def test_a_turn_goes_on_behind_a_call(calling: Running) -> None:
    calling.text = f"<think>\nI look it up.</think>{CALL}"
    name = calling.gateway.model
    first: Any = await calling.openai.responses.create(model=name, input="Weather?", tools=[TOOL])
    calling.text = "It is sunny."
    result: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "sunny"}
    by_id = await calling.openai.responses.create(
        model=name, previous_response_id=first.id, input=[result], tools=[TOOL]
    )
    by_items = await calling.openai.responses.create(
        model=name, input=[{"role": "user", "content": "Weather?"}, *first.output, result], tools=[TOOL]
    )
    assert by_id.output_text == by_items.output_text == "It is sunny."
    _, second, third = calling.peer("prefill").jobs
    assert second.prompt.token_ids == third.prompt.token_ids
    prompt = calling.tokenizer.written(second.prompt.token_ids)
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>' in prompt
    assert "<|im_start|>tool\nsunny<|im_end|>" in prompt


async def test_forms_are_constrained(calling: Running) -> None:
    class City(BaseModel):
        name: str

    calling.text = '{"name": "Bonn"}'
    name = calling.gateway.model
    parsed = await calling.openai.responses.parse(model=name, input="City?", text_format=City)
    assert parsed.output_parsed == City(name="Bonn")
    calling.text = CALL
    await calling.openai.responses.create(model=name, input="Weather?", tools=[TOOL], tool_choice="required")
    form, call = (job.sampling.grammar for job in calling.peer("prefill").jobs)
    assert '"name"' in form and '"city"' in call
    with pytest.raises(openai.BadRequestError) as caught:
        await calling.openai.responses.create(
            model=name, input="City?", text={"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}
        )
    assert (caught.value.param or "").startswith("text.format")
