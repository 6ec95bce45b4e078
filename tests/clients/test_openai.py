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
    found: str = client.models.list().data[0].id
    return found


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


def test_an_answer_is_parsed_by_its_pydantic_model(client: openai.OpenAI, model: str) -> None:
    done = client.chat.completions.parse(model=model, messages=asked("What is 7 + 5?"), response_format=Sum)
    assert isinstance(done.choices[0].message.parsed, Sum)


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
