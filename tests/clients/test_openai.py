"""The official OpenAI client for Python, with its defaults: chats, tools, structured answers, responses, retries."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import AT_ONCE
from tests.e2e.harness.system import System

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
STORY: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
PERSON: Any = {
    "$defs": {"Town": {"type": "object", "properties": {"name": {"$ref": "#/$defs/Text"}}, "required": ["name"]}}
    | {"Text": {"type": "string", "maxLength": 12}},
    "type": "object",
    "properties": {
        "name": {"$ref": "#/$defs/Text"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "town": {"anyOf": [{"$ref": "#/$defs/Town"}, {"type": "null"}]},
    },
    "required": ["name", "age"],
}
ENDLESS: Any = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}


class Sum(BaseModel):
    """What the model is made to answer."""

    a: int
    b: int
    kind: Literal["sum", "difference"]


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{system.gateway_url}/v1", api_key="none") as made:
        yield made
    system.wait_until_idle()


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def asked(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_the_stream_helper_gives_the_same_answer(client: openai.OpenAI, model: str) -> None:
    question = asked("What is 7 + 5?")
    whole = client.chat.completions.create(model=model, messages=question, temperature=0)
    with client.chat.completions.stream(model=model, messages=question, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == whole.choices[0].message.content == final.choices[0].message.content
    assert "12" in "".join(deltas)


def test_log_probabilities_come_with_every_token(client: openai.OpenAI, model: str) -> None:
    done = client.chat.completions.create(
        model=model, messages=asked("Hello!"), temperature=0, logprobs=True, top_logprobs=3
    )
    assert done.choices[0].logprobs is not None and done.choices[0].logprobs.content is not None
    tokens = done.choices[0].logprobs.content
    assert done.usage is not None and len(tokens) == done.usage.completion_tokens
    for token in tokens:
        assert token.top_logprobs[0].logprob == token.logprob
        assert len(token.top_logprobs) == 3
    text = b"".join(bytes(token.bytes or ()) for token in tokens).decode()  # a token may be a part of a character
    assert done.choices[0].message.content and text.startswith(done.choices[0].message.content)


def test_an_answer_is_parsed_by_its_pydantic_model(client: openai.OpenAI, model: str) -> None:
    done = client.chat.completions.parse(model=model, messages=asked("What is 7 + 5?"), response_format=Sum)
    assert isinstance(done.choices[0].message.parsed, Sum)


def test_a_tool_is_called_and_its_result_is_told(client: openai.OpenAI, model: str) -> None:
    """What an agent's loop does: the question, the call, the result, the answer."""
    messages = asked("What is the weather in Paris?")
    first = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER], temperature=0).choices[0]
    assert first.finish_reason == "tool_calls" and first.message.tool_calls is not None
    (call,) = first.message.tool_calls
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [first.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    second = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER], temperature=0).choices[0]
    assert second.finish_reason == "stop" and "rain" in (second.message.content or "")


def test_streamed_calls_add_up_to_the_whole_ones(client: openai.OpenAI, model: str) -> None:
    question = asked("What is the weather in Paris?")
    with client.chat.completions.stream(
        model=model, messages=question, tools=[WEATHER], tool_choice="required", temperature=0
    ) as stream:
        final = stream.get_final_completion()
    whole = client.chat.completions.create(
        model=model, messages=question, tools=[WEATHER], tool_choice="required", temperature=0
    )
    calls = [
        [call.function.arguments for call in done.choices[0].message.tool_calls or () if call.type == "function"]
        for done in (final, whole)
    ]
    assert calls[0] == calls[1] and len(calls[0]) >= 1


def test_responses_whole_streamed_parsed_and_the_next_turn(client: openai.OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="What is 7 + 5?", temperature=0)
    assert "12" in first.output_text
    with client.responses.stream(model=model, input="What is 7 + 5?", temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == first.output_text
    parsed = client.responses.parse(model=model, input="What is 7 + 5?", text_format=Sum)
    assert isinstance(parsed.output_parsed, Sum)
    following = client.responses.create(model=model, previous_response_id=first.id, input="Thanks, bye!")
    assert following.previous_response_id == first.id
    assert following.usage is not None and first.usage is not None
    assert following.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def test_an_answer_that_is_left_is_ended(client: openai.OpenAI, model: str, system: System) -> None:
    stream = client.chat.completions.create(model=model, messages=STORY, stream=True, **ENDLESS)
    for _ in range(5):
        next(iter(stream))
    stream.close()
    system.wait_until_idle()


def test_a_time_out_is_the_clients_own_error(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.1, max_retries=0).chat.completions.create(model=model, messages=STORY, **ENDLESS)


def test_a_request_that_is_refused_for_now_is_tried_again(client: openai.OpenAI, model: str, system: System) -> None:
    system.wait_until_idle()
    held = [client.chat.completions.create(model=model, messages=STORY, stream=True, **ENDLESS) for _ in range(AT_ONCE)]
    with pytest.raises(openai.RateLimitError) as refused:
        client.with_options(max_retries=0).chat.completions.create(model=model, messages=asked("Hello!"))
    assert float(refused.value.response.headers["retry-after"]) >= 1
    for stream in held:
        stream.close()
    answer = client.with_options(max_retries=8).chat.completions.create(model=model, messages=asked("Hello!"))
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_an_answer_by_a_schema_that_closes_nothing_is_complete(
    client: openai.OpenAI, model: str, temperature: float
) -> None:
    """Schemas as most generators write them; their strings are bounded, their objects are not said to be closed."""
    patient = client.with_options(max_retries=20)

    def ask(number: int) -> Any:
        asked_for: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        said = asked(f"Who is number {number}?")
        more: Any = {"temperature": temperature, "seed": number, "max_tokens": 200, "response_format": asked_for}
        return patient.chat.completions.create(model=model, messages=said, **more).choices[0]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        choices = list(threads.map(ask, range(20)))
    assert [choice.finish_reason for choice in choices] == ["stop"] * 20
    for choice in choices:
        jsonschema.validate(json.loads(choice.message.content), PERSON)
