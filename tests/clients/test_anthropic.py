"""The official Anthropic client for Python, with its defaults."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System

MODEL = DEMO.name
WEATHER: Any = {
    "name": "get_weather",
    "description": "Tells the weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=system.gateway_url, api_key="none") as made:
        yield made
    system.wait_until_idle()


def asked(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_a_message_whole_and_streamed_is_the_same_answer(client: anthropic.Anthropic) -> None:
    question: Any = {
        "model": MODEL,
        "max_tokens": 64,
        "messages": asked("What is 7 + 5?"),
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**question)
    assert whole.stop_reason == "end_turn" and whole.content[0].type == "text" and "12" in whole.content[0].text
    with client.messages.stream(**question) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text"] and text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_tool_is_used_and_its_result_is_told(client: anthropic.Anthropic) -> None:
    shared: Any = {"model": MODEL, "max_tokens": 64, "tools": [WEATHER], "extra_body": {"temperature": 0}}
    messages = asked("What is the weather in Paris?")
    first = client.messages.create(messages=messages, **shared)
    (used,) = [block for block in first.content if block.type == "tool_use"]
    assert first.stop_reason == "tool_use" and used.name == "get_weather" and used.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "rain"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(messages=messages, **shared)
    assert second.stop_reason == "end_turn"
    assert "rain" in "".join(block.text for block in second.content if block.type == "text")
