"""Unknown fields are refused by name, or left out and named: in a header of the answer, and once in the log."""

import logging
from typing import Any

import pytest

from gateway.errors import APIError
from gateway.openai.bodies.parsing import chat_request
from gateway.openai.bodies.unknown_fields import MAX_REPORTED_FIELDS, UnknownFields
from tests.gateway.running import Serve

HI: Any = {"messages": [{"role": "user", "content": "Hi!"}]}
HEADER = "x-baton-ignored-fields"


def test_ignored_fields_are_named_on_every_level() -> None:
    unknown = UnknownFields(ignores=True)
    more = {"provider": {"order": []}, "seed": 7, "stream_options": {"include_usage": True, "pace": 1}, "stream": True}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}, "mood": 1}}
    body = chat_request({**HI, **more, "response_format": form}, unknown)
    plain = {**form, "json_schema": {"name": "x", "schema": {"type": "null"}}}
    assert body == chat_request(
        {**HI, "seed": 7, "stream": True, "stream_options": {"include_usage": True}, "response_format": plain}
    )
    assert unknown.report() == ["provider", "stream_options.pace", "response_format.json_schema.mood"]


def test_names_are_bounded_and_printable() -> None:
    unknown = UnknownFields(ignores=True)
    chat_request({**HI, "a\r\nx-evil: 1": 1, "é": 1, **{f"field_{number}": 1 for number in range(99)}}, unknown)
    assert unknown.report() == ["(unprintable)", *(f"field_{number}" for number in range(MAX_REPORTED_FIELDS - 1))]


@pytest.mark.parametrize("wrong", [{"temperature": 9}, {"length_penalty": 0.5}, {"seed": "x"}, {"prediction": {}}])
def test_ignoring_hides_no_other_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(APIError):
        chat_request({**HI, **wrong, "mood": 1}, UnknownFields(ignores=True))


async def test_a_gateway_that_ignores(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    running = await serve("prefill", "decode", unknown_fields="ignore")
    with caplog.at_level(logging.INFO, "baton.gateway"):
        for stream in (False, True):
            answer = await running.chat(provider={"sort": "price"}, fallbacks=[], stream=stream)
            assert (answer.status_code, answer.headers[HEADER]) == (200, "provider, fallbacks")
        assert HEADER not in (await running.chat()).headers
        for path, body in (
            ("/v1/completions", {"prompt": "Hi!"}),
            ("/v1/responses", {"input": "Hi!"}),
            ("/v1/messages", {**HI, "model": running.gateway.model, "max_tokens": 5}),
            ("/v1/messages/count_tokens", {**HI, "model": running.gateway.model}),
            ("/tokenize", {"prompt": "Hi!"}),
        ):
            answer = await running.post(path, **body, mood="sunny")
            assert (answer.status_code, answer.headers[HEADER]) == (200, "mood"), path
    logged = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert [line.partition(": ")[2] for line in logged] == ["provider, fallbacks", "mood"]
    assert "sunny" not in caplog.text


async def test_by_default_they_are_refused(serve: Serve) -> None:
    running = await serve("prefill", "decode")
    refusal = await running.chat(provider={})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "provider")
    harmless: dict[str, Any]
    for harmless in ({"keep_alive": "5m"}, {"cache_prompt": False}, {"session_id": "x"}, {"plugins": []}):
        assert (await running.chat(**harmless, max_tokens=1)).status_code == 200
    assert (await running.chat(plugins=[{"id": "web"}])).status_code == 400
