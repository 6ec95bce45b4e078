"""The Responses and the Messages API over the demo model: what they say is what the chat says."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.e2e.harness.system import System
from tests.e2e.test_secrecy import dump
from tests.plain_http import PLAIN

QUESTION = "Tell me a story about a fox and a lantern."
TOKENS = 32


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{system.gateway_url}/v1", api_key="mine", timeout=60, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def claude(system: System) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=system.gateway_url, api_key="mine", timeout=60, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def said(client: openai.OpenAI, model: str, *texts: str) -> str:
    """What the chat answers to these turns, greedily."""
    roles = ("user", "assistant")
    turns: Any = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    chat = client.chat.completions.create(model=model, messages=turns, temperature=0, max_tokens=TOKENS)
    return chat.choices[0].message.content or ""


def test_responses_go_on_from_each_other(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "temperature": 0, "max_output_tokens": TOKENS}
    first = client.responses.create(input=QUESTION, **asked)
    assert first.output_text == said(client, model, QUESTION) != ""
    with client.responses.stream(input="And then?", previous_response_id=first.id, **asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == said(client, model, QUESTION, first.output_text, "And then?") != ""


def test_log_probabilities_are_those_of_the_chat(client: openai.OpenAI, model: str) -> None:
    turns: Any = [{"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(
        model=model, messages=turns, temperature=0, max_tokens=TOKENS, logprobs=True, top_logprobs=2
    )
    asked: Any = {"model": model, "temperature": 0, "max_output_tokens": TOKENS, "top_logprobs": 2}
    response: Any = client.responses.create(input=QUESTION, include=["message.output_text.logprobs"], **asked)
    stream: Any = client.responses.create(input=QUESTION, stream=True, **asked)
    told = [one for event in stream if event.type == "response.output_text.delta" for one in event.logprobs]
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    scores = [(one.token, one.logprob) for one in chat.choices[0].logprobs.content]
    text = response.output[0].content[0]
    count = len(text.logprobs)
    assert len(scores) - 1 <= count <= len(scores), "the token that ends an answer is no text"
    assert [one.token for one in text.logprobs] == [token for token, _ in scores[:count]]
    assert [one.logprob for one in text.logprobs] == pytest.approx([score for _, score in scores[:count]], abs=1e-3)
    assert [one.token for one in told] == [one.token for one in text.logprobs]
    assert "".join(one.token for one in text.logprobs) == text.text
    assert all(len(one.top_logprobs) == 2 for one in text.logprobs)


def test_messages_say_what_the_chat_says(client: openai.OpenAI, claude: anthropic.Anthropic, model: str) -> None:
    asked: Any = {"model": model, "max_tokens": TOKENS, "messages": [{"role": "user", "content": QUESTION}]}
    whole = claude.messages.create(**asked, extra_body={"temperature": 0})
    assert [block.text for block in whole.content if block.type == "text"] == [said(client, model, QUESTION)]
    assert whole.usage.cache_read_input_tokens is not None
    prompt = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert prompt == claude.messages.count_tokens(model=model, messages=asked["messages"]).input_tokens
    with claude.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text


def test_redis_shows_nothing_of_stored_responses(client: openai.OpenAI, model: str, system: System) -> None:
    response = client.responses.create(
        model=model, input="My parrot is called Gustavina.", max_output_tokens=TOKENS, temperature=0
    )
    shown = dump(system.store)
    secrets = [b"Gustavina", b"parrot", response.id.encode(), b"Bearer", b'"mine"']
    secrets += [response.output_text.encode()] if len(response.output_text) > 8 else []
    assert b"baton:{stored}" in shown and [secret for secret in secrets if secret in shown] == []
    assert "Gustavina" not in system.log() and response.id not in system.log()


def test_an_agents_default_limit_is_no_error(claude: anthropic.Anthropic, model: str, system: System) -> None:
    body = {"model": model, "max_tokens": 32000, "messages": [{"role": "user", "content": "Hello!"}]}
    answer = httpx.post(f"{system.gateway_url}/v1/messages", json=body, timeout=60, verify=PLAIN)
    assert answer.status_code == 200 and answer.json()["stop_reason"] in ("end_turn", "model_context_window_exceeded")
