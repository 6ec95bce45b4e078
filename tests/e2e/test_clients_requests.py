"""What clients, agent frameworks, load tools and peers' own tests send is answered, or refused by the field's name.

Every answer and event has the shape that the official packages' own types have, and every choice ends.
"""

import asyncio
import json
from typing import Any

import anthropic.types
import httpx
import msgspec
import openai.types.chat
import openai.types.responses
import pytest
from pydantic import TypeAdapter

from gateway.openai.bodies.parameters import CHAT_ALIASES, CHAT_PARAMETERS, COMPLETION_PARAMETERS
from gateway.openai.bodies.schemas import ChatRequest, CompletionRequest, StreamOptions
from tests.e2e.asked.asked import CHAT, COMPLETION, MESSAGES, RESPONSES, Asked, Got
from tests.e2e.asked.chats import CHATS
from tests.e2e.asked.completions import COMPLETIONS
from tests.e2e.asked.frameworks import FRAMEWORKS
from tests.e2e.asked.load_tools import LOAD_TOOLS
from tests.e2e.asked.messages import MESSAGES as MESSAGES_ASKED
from tests.e2e.asked.parameters import PARAMETERS, SUPPORTED_BY_NAME, sent
from tests.e2e.asked.responses import RESPONSES as RESPONSES_ASKED
from tests.e2e.asked.tokens import TOKENS
from tests.e2e.asked.tools import TOOLS
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S

LISTS = (LOAD_TOOLS, TOKENS, COMPLETIONS, CHATS, TOOLS, FRAMEWORKS, PARAMETERS, RESPONSES_ASKED, MESSAGES_ASKED)
ASKED = {asked.name: asked for one in LISTS for asked in one}
AT_ONCE = 16
WHOLE: dict[str, TypeAdapter[Any]] = {
    CHAT: TypeAdapter(openai.types.chat.ChatCompletion),
    COMPLETION: TypeAdapter(openai.types.Completion),
    RESPONSES: TypeAdapter(openai.types.responses.Response),
    MESSAGES: TypeAdapter(anthropic.types.Message),
}
EVENT: dict[str, TypeAdapter[Any]] = {
    CHAT: TypeAdapter(openai.types.chat.ChatCompletionChunk),
    COMPLETION: WHOLE[COMPLETION],
    RESPONSES: TypeAdapter(openai.types.responses.ResponseStreamEvent),
    MESSAGES: TypeAdapter(anthropic.types.RawMessageStreamEvent),
}


@pytest.fixture(scope="module")
def answers(system: System) -> dict[str, httpx.Response]:

    async def send() -> list[httpx.Response]:
        room = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(base_url=system.gateway_url, timeout=LONG_DEADLINE_S, verify=PLAIN) as client:

            async def one(asked: Asked) -> httpx.Response:
                async with room:
                    return await client.post(asked.path, json=asked.body, headers=asked.headers)

            return await asyncio.gather(*map(one, ASKED.values()))

    return dict(zip(ASKED, asyncio.run(send()), strict=True))


def test_no_two_requests_have_one_name() -> None:
    assert len(ASKED) == sum(map(len, LISTS))


def test_every_parameter_of_the_page_is_known_and_asked_for() -> None:
    known = {one.name for kind in (ChatRequest, CompletionRequest) for one in msgspec.structs.fields(kind)}
    known |= {f"stream_options.{one.name}" for one in msgspec.structs.fields(StreamOptions)}
    assert {*SUPPORTED_BY_NAME} == known - {"stream_options"} | {
        *CHAT_PARAMETERS,
        *COMPLETION_PARAMETERS,
        *CHAT_ALIASES,
    }
    assert {*SUPPORTED_BY_NAME} <= {
        name for one in ASKED.values() if one.path in (CHAT, COMPLETION) for name in sent(one)
    }


@pytest.mark.parametrize("name", ASKED)
def test_the_request_is_answered_as_its_client_expects(answers: dict[str, httpx.Response], name: str) -> None:
    asked, answer = ASKED[name], answers[name]
    assert answer.status_code == asked.status, answer.text
    got = parsed(asked.path, answer)
    if asked.status == httpx.codes.OK:
        check_shape(asked.path, got)
        assert bool(got.events) == bool(asked.body.get("stream"))
        assert asked.path not in (CHAT, COMPLETION) or all(got.ends), f"a choice does not end: {answer.text}"
    else:
        assert asked.param in (None, got.whole["error"].get("param")), answer.text
    assert asked.holds(got), answer.text


def parsed(path: str, answer: httpx.Response) -> Got:
    """Returns an answer as plain data, a stream without its comments and its `[DONE]`, which has to be there."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return Got(answer.json(), [])
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    if path in (CHAT, COMPLETION):
        assert data.pop() == "[DONE]"
    return Got(None, [json.loads(one) for one in data])


def check_shape(path: str, got: Got) -> None:
    """Raises `ValidationError` for what the official package's types do not allow."""
    adapter = EVENT.get(path) if got.events else WHOLE.get(path)
    for one in got.events or [got.whole]:
        if adapter is not None:
            adapter.validate_python(told_to_types(one) if path == COMPLETION else one)


def told_to_types(completion: Any) -> Any:
    """Returns a completion without two nulls that OpenAI's API sends and OpenAI's types do not know.

    They are the reason of the end, of a choice that goes on, and the score of a prompt's first token.
    """
    choices = []
    for choice in completion["choices"]:
        scores = choice["logprobs"] and {
            name: [one for one in values if one is not None] for name, values in choice["logprobs"].items() if values
        }
        choices.append({**choice, "finish_reason": choice["finish_reason"] or "stop", "logprobs": scores})
    return {**completion, "choices": choices}
