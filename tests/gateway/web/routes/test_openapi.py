"""/openapi.json is a document that validators accept, made of the types that bodies and answers really have."""

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from jsonschema import Draft202012Validator

from gateway.openai.answers.answer_types import ChatChunk, CompletionStreamChunk
from tests.gateway.running import Running

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi!"}]
OFFERED = {CHAT, COMPLETION, "/v1/models", "/v1/models/{model}", "/tokenize", "/detokenize", "/v1/tokenize"}
OFFERED |= {"/v1/detokenize", "/health", "/ready", "/ping", "/version", "/load", "/stats", "/metrics"}


def validator(document: dict[str, Any], schema: Any) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


async def fetched(running: Running) -> dict[str, Any]:
    answer = await running.client.get("/openapi.json")
    assert answer.status_code == 200
    document: dict[str, Any] = answer.json()
    return document


def body_of(document: dict[str, Any], path: str) -> Draft202012Validator:
    return validator(document, document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])


async def test_every_endpoint_is_there_and_every_schema_is_one(running: Running) -> None:
    document = await fetched(running)
    assert document["openapi"] == "3.1.0" and set(document["paths"]) >= OFFERED
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert named <= set(document["components"]["schemas"])
    ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)


async def test_what_only_this_server_knows_is_in_the_schemas(running: Running) -> None:
    document = await fetched(running)
    chat, completion, ids = (body_of(document, path) for path in (CHAT, COMPLETION, "/detokenize"))
    assert chat.is_valid({"messages": MESSAGES, "model": "tiny", "n": 16, "max_tokens": 255})
    for wrong in ({"model": "other"}, {"n": 17}, {"max_tokens": 256}, {"temperature": 3}, {"nonsense": 1}):
        assert not chat.is_valid({"messages": MESSAGES, **wrong}), wrong
    right: list[Any] = ["a", ["a", "b"], [0, 442], [[1], [2, 3]]]
    not_right: list[Any] = [1, [], ["a", 1], [443], [[443]], [-1], [1.5]]
    assert [prompt for prompt in right if not completion.is_valid({"prompt": prompt})] == []
    assert [prompt for prompt in not_right if completion.is_valid({"prompt": prompt})] == []
    assert ids.is_valid({"tokens": [442]}) and not ids.is_valid({"tokens": [443]})


async def test_parameters_that_are_not_implemented_are_described_by_what_is_accepted(running: Running) -> None:
    document = await fetched(running)
    chat = body_of(document, CHAT)
    for value, is_neutral in ((1, True), (None, True), (2, False)):
        body = {"messages": MESSAGES, "length_penalty": value}
        assert chat.is_valid(body) is is_neutral
        assert ((await running.post(CHAT, **body)).status_code == 200) is is_neutral


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (CHAT, {"messages": MESSAGES, "n": 2, "max_tokens": 3}, ChatChunk),
        (COMPLETION, {"prompt": ["a", "b"]}, CompletionStreamChunk),
    ],
)
async def test_chunks_are_of_the_types_that_are_described(
    running: Running, path: str, body: dict[str, Any], kind: type[Any], options: dict[str, Any]
) -> None:
    answer = await running.post(path, **body, stream=True, **options)
    chunks = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert chunks.pop() == "[DONE]" and len(chunks) > 2
    document = await fetched(running)
    content = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    json_data, done = content["itemSchema"]["properties"]["data"]["anyOf"]
    assert done == {"const": "[DONE]"}
    for chunk in chunks:
        msgspec.json.decode(chunk, type=kind)
        validator(document, json_data["contentSchema"]).validate(json.loads(chunk))


@pytest.mark.parametrize(("path", "method"), [("/nothing", "GET"), (CHAT, "GET"), ("/v1/embeddings", "POST")])
async def test_errors_are_of_the_type_that_is_described(running: Running, path: str, method: str) -> None:
    document = await fetched(running)
    wrong = document["paths"][CHAT]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]
    found = (await running.client.request(method, path)).json()
    validator(document, wrong).validate(found)
    with pytest.raises(jsonschema.ValidationError):
        validator(document, wrong).validate({**found, "more": 1})


async def test_the_page_names_nobody_else(running: Running) -> None:
    page = await running.client.get("/docs")
    assert page.status_code == 200 and "text/html" in page.headers["content-type"]
    assert "://" not in page.text and "openapi.json" in page.text
