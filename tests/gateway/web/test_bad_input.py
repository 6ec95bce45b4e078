"""Whatever is wrong with a request: the right status, OpenAI's error shape, and nothing enqueued."""

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.openai.bodies.messages import MAX_MESSAGES as MOST_MESSAGES
from tests.gateway.models import CONTEXT_TOKENS
from tests.gateway.running import Running, empty, serving

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi!"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(redis_url: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One gateway for all rows: none of them may reach a worker."""
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_text("a secret of the tests, long enough")
    await empty(redis_url)
    async with serving(redis_url, model, secret) as start:
        yield await start("prefill", "decode", max_body=100_000)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def check(running: Running, status: int, code: str | None, param: str | None, **request: Any) -> None:
    headers = {"content-type": "application/json"} | request.pop("headers", {})
    answer = await running.client.request(request.pop("method", "POST"), **request, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"]
    assert error["code"] == code
    assert error["param"] == param
    assert await running.jobs() == 0
    assert len(running.gateway.requests) == 0


RAW = {
    "empty": (b"", 400, "invalid_json"),
    "malformed": (b'{"messages": [', 400, "invalid_json"),
    "not an object": (b"[1]", 400, "invalid_json"),
    "not UTF-8": (b'{"prompt": "\xff\xfe"}', 400, "invalid_encoding"),
    "UTF-16": ('{"prompt": "a"}'.encode("utf-16"), 400, "invalid_encoding"),
    "a byte order mark": (b'\xef\xbb\xbf{"prompt": "a"}', 400, "invalid_json"),
    "NaN": (b'{"prompt": "a", "temperature": NaN}', 400, "invalid_json"),
    "-Infinity": (b'{"prompt": "a", "top_p": -Infinity}', 400, "invalid_json"),
    "an overflow": (b'{"prompt": "a", "temperature": 1e999}', 400, "invalid_value"),
    "half a surrogate": (b'{"prompt": "\\ud800"}', 400, "invalid_json"),
    "nested": (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "invalid_json"),
    "nested a little": (b'{"prompt": ' + b"[" * 64 + b"]" * 64 + b"}", 400, "nested_too_deeply"),
    "nested without end": (b'{"prompt": ' + b"[" * 20000, 400, "too_many_values"),
    "nothing but lists": (b'{"prompt": [' + b"[1]," * 20_000 + b"[1]]}", 400, "too_many_values"),
    "too large": (b'{"prompt": "' + b"a" * 200_000 + b'"}', 413, "body_too_large"),
}


@pytest.mark.parametrize("row", RAW)
async def test_bodies(shared: Running, row: str) -> None:
    body, status, code = RAW[row]
    await check(shared, status, code, None, url=COMPLETION, content=body)


async def test_a_body_without_a_length_is_bounded_too(shared: Running) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b" " * 1000

    await check(shared, 413, "body_too_large", None, url=CHAT, content=endless())


async def test_a_byte_order_mark_is_named(shared: Running) -> None:
    """Editors write it where nobody sees it."""
    headers = {"content-type": "application/json"}
    answer = await shared.client.post(CHAT, content=b"\xef\xbb\xbf{}", headers=headers)
    assert answer.json()["error"]["message"] == "the body is not JSON: it begins with a byte order mark"


@pytest.mark.parametrize("kind", ["", "text/plain"])
async def test_content_types(shared: Running, kind: str) -> None:
    body = json.dumps({"messages": MESSAGES}).encode()
    await check(shared, 415, "wrong_content_type", None, url=CHAT, content=body, headers={"content-type": kind})


@pytest.mark.parametrize("charset", ["latin-1", "nonsense"])
async def test_charsets(shared: Running, charset: str) -> None:
    kind = {"content-type": f"application/json; charset={charset}"}
    await check(shared, 415, "wrong_charset", None, url=CHAT, json={"messages": MESSAGES}, headers=kind)


@pytest.mark.parametrize("kind", ["application/json; charset=UTF-8", 'Application/JSON;charset="utf-8"; x=1'])
async def test_utf8_may_be_named(shared: Running, kind: str) -> None:
    await check(
        shared, 400, "empty_prompt", "prompt", url=COMPLETION, json={"prompt": ""}, headers={"content-type": kind}
    )


@pytest.mark.parametrize("encoding", ["gzip", "gzip, identity"])
async def test_encodings(shared: Running, encoding: str) -> None:
    body = gzip.compress(json.dumps({"messages": MESSAGES}).encode())
    encoded = {"content-encoding": encoding}
    await check(shared, 415, "wrong_content_encoding", None, url=CHAT, content=body, headers=encoded)


PATHS = [
    ("POST", "/v1/chat/completion", 404),
    ("GET", "/v1", 404),
    ("GET", "/nothing", 404),
    ("POST", "/chat/completions", 404),
    ("GET", CHAT, 405),
    ("PUT", COMPLETION, 405),
    ("DELETE", "/v1/models", 405),
    ("POST", "/health", 405),
    ("POST", "/docs", 405),
    ("GET", "/redoc", 404),
]


@pytest.mark.parametrize(("method", "path", "status"), PATHS)
async def test_paths_and_methods(shared: Running, method: str, path: str, status: int) -> None:
    code = "not_found" if status == 404 else "method_not_allowed"
    await check(shared, status, code, None, method=method, url=path)


async def test_unknown_models(shared: Running) -> None:
    await check(shared, 404, "model_not_found", "model", method="GET", url="/v1/models/nothing/at-all")
    for path, field in ((CHAT, {"messages": MESSAGES}), (COMPLETION, {"prompt": "a"})):
        body = {**field, "model": "nothing"}
        await check(shared, 404, "model_not_found", "model", url=path, json=body)


# name: (fields, code, param)
BOTH: dict[str, tuple[dict[str, Any], str, str]] = {
    "max_tokens 0": ({"max_tokens": 0}, "conflicting_parameters", "max_tokens"),
    "max_tokens -1": ({"max_tokens": -1}, "invalid_value", "max_tokens"),
    "max_tokens text": ({"max_tokens": "5"}, "invalid_type", "max_tokens"),
    "max_tokens true": ({"max_tokens": True}, "invalid_type", "max_tokens"),
    "max_tokens too large": ({"max_tokens": CONTEXT_TOKENS}, "context_length_exceeded", "max_tokens"),
    "max_tokens huge": ({"max_tokens": 10**30}, "context_length_exceeded", "max_tokens"),
    "max_completion_tokens too large": (
        {"max_completion_tokens": CONTEXT_TOKENS},
        "context_length_exceeded",
        "max_completion_tokens",
    ),
    "max_completion_tokens 0": ({"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens"),
    "two limits": (
        {"max_tokens": 3, "max_completion_tokens": 4},
        "conflicting_parameters",
        "max_completion_tokens",
    ),
    "two limits by other names": ({"max_tokens": 3, "n_predict": 4}, "conflicting_parameters", "n_predict"),
    "truncate_prompt_tokens -2": ({"truncate_prompt_tokens": -2}, "invalid_value", "truncate_prompt_tokens"),
    "temperature 2.1": ({"temperature": 2.1}, "invalid_value", "temperature"),
    "temperature -0.1": ({"temperature": -0.1}, "invalid_value", "temperature"),
    "temperature text": ({"temperature": "NaN"}, "invalid_type", "temperature"),
    "top_p 0": ({"top_p": 0}, "invalid_value", "top_p"),
    "top_p 1.1": ({"top_p": 1.1}, "invalid_value", "top_p"),
    "top_k -2": ({"top_k": -2}, "invalid_value", "top_k"),
    "min_p 1.5": ({"min_p": 1.5}, "invalid_value", "min_p"),
    "seed huge": ({"seed": 1 << 70}, "invalid_value", "seed"),
    "stop number": ({"stop": 3}, "invalid_type", "stop"),
    "stop empty": ({"stop": ""}, "invalid_value", "stop"),
    "stop with an empty one": ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
    "too many stops": ({"stop": ["a"] * 17}, "invalid_value", "stop"),
    "stream text": ({"stream": "yes"}, "invalid_type", "stream"),
    "stream_options alone": ({"stream_options": {"include_usage": True}}, "conflicting_parameters", "stream_options"),
    "stream_options unknown": ({"stream": True, "stream_options": {"x": 1}}, "unknown_parameter", "stream_options.x"),
    "metadata with a number": ({"metadata": {"x": 1}}, "invalid_type", "metadata[...]"),
    "unknown": ({"temprature": 1}, "unknown_parameter", "temprature"),
    "unknown and null": ({"temprature": None}, "unknown_parameter", "temprature"),
    **{
        f"{name} {value}": ({name: value}, "unsupported_parameter", name)
        for name, value in {
            "length_penalty": 0.5,
            "thinking_token_budget": 5,
            "mirostat": 2,
            "kv_transfer_params": {"do_remote_decode": True},
            "request_id": "mine",
            "use_beam_search": True,
            "guided_decoding_backend": "mine",
        }.items()
    },
    "frequency_penalty -3": ({"frequency_penalty": -3}, "invalid_value", "frequency_penalty"),
    "presence_penalty 3": ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
    "repetition_penalty 0": ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
    "logit_bias of a word": ({"logit_bias": {"cat": 1}}, "invalid_token_id", "logit_bias"),
    "logit_bias of another model's token": ({"logit_bias": {"50256": 1}}, "invalid_token_id", "logit_bias"),
    "logit_bias 101": ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias[...]"),
    "allowed_token_ids none": ({"allowed_token_ids": []}, "invalid_value", "allowed_token_ids"),
    "allowed_token_ids unknown": ({"allowed_token_ids": [5, 443]}, "invalid_token_id", "allowed_token_ids"),
    "stop_token_ids negative": ({"stop_token_ids": [-1]}, "invalid_token_id", "stop_token_ids"),
    "min_tokens -1": ({"min_tokens": -1}, "invalid_value", "min_tokens"),
    "min_tokens above max_tokens": ({"min_tokens": 5, "max_tokens": 4}, "conflicting_parameters", "min_tokens"),
    "bad_words empty": ({"bad_words": [""]}, "invalid_value", "bad_words[0]"),
    "prompt_logprobs 21": ({"prompt_logprobs": 21}, "invalid_value", "prompt_logprobs"),
    "prompt_logprobs in a stream": (
        {"prompt_logprobs": 1, "stream": True},
        "conflicting_parameters",
        "prompt_logprobs",
    ),
    "response_format unknown": ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    "response_format without a schema": (
        {"response_format": {"type": "json_schema"}},
        "missing_required_parameter",
        "response_format.json_schema",
    ),
    "two forms": (
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        "conflicting_parameters",
        "guided_regex",
    ),
    "a form that is no schema": (
        {"structured_outputs": {"json": "{broken"}},
        "invalid_grammar",
        "structured_outputs.json",
    ),
    "guided_choice empty": ({"guided_choice": []}, "invalid_value", "guided_choice"),
    "n 0": ({"n": 0}, "invalid_value", "n"),
    "n too large": ({"n": 17}, "invalid_value", "n"),
    "best_of less than n": ({"n": 4, "best_of": 2}, "conflicting_parameters", "best_of"),
    "best_of in a stream": ({"best_of": 2, "stream": True}, "conflicting_parameters", "best_of"),
    "best_of too large": ({"best_of": 17}, "invalid_value", "best_of"),
    "priority text": ({"priority": "high"}, "invalid_type", "priority"),
    "priority too high": ({"priority": 1 << 31}, "invalid_value", "priority"),
    "priority too low": ({"priority": -(1 << 31) - 1}, "invalid_value", "priority"),
    "cache_salt empty": ({"cache_salt": ""}, "invalid_value", "cache_salt"),
    "cache_salt too long": ({"cache_salt": "s" * 257}, "invalid_value", "cache_salt"),
}


@pytest.mark.parametrize("row", BOTH)
async def test_parameters(shared: Running, row: str) -> None:
    """Both paths share one type for these fields: a chat has every third row, a completion the others."""
    fields, code, param = BOTH[row]
    path, own = (COMPLETION, {"prompt": "Hi!"}) if list(BOTH).index(row) % 3 else (CHAT, {"messages": MESSAGES})
    await check(shared, 400, code, param, url=path, json=own | fields)


ONLY_CHAT: dict[str, tuple[dict[str, Any], str, str]] = {
    "no messages": ({}, "missing_required_parameter", "messages"),
    "empty messages": ({"messages": []}, "invalid_value", "messages"),
    "too many messages": ({"messages": MESSAGES * (MOST_MESSAGES + 1)}, "invalid_value", "messages"),
    "message text": ({"messages": ["Hi!"]}, "invalid_type", "messages[0]"),
    "no role": ({"messages": [{"content": "a"}]}, "missing_required_parameter", "messages[0].role"),
    "unknown role": ({"messages": [{"role": "king", "content": "a"}]}, "invalid_value", "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    "content null": ({"messages": [{"role": "user", "content": None}]}, "invalid_type", "messages[0].content"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "invalid_value",
        "messages[0].content[0].type",
    ),
    "a part without a type": (
        {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
        "missing_required_parameter",
        "messages[0].content[0].type",
    ),
    "a call of nothing": (
        {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}]},
        "invalid_value",
        "messages[0].tool_calls[0]",
    ),
    "too long": (
        {"messages": [{"role": "user", "content": "z" * 2000}]},
        "context_length_exceeded",
        "messages",
    ),
    "tools": (
        {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}]},
        "no_tool_template",
        "tools",
    ),
    "functions": ({"messages": MESSAGES, "functions": [{"name": "f"}]}, "no_tool_template", "functions"),
    "a tool without a function": (
        {"messages": MESSAGES, "tools": [{"type": "function"}]},
        "missing_required_parameter",
        "tools[0].function",
    ),
    "too many tools": (
        {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}] * 129},
        "invalid_value",
        "tools",
    ),
    "another kind of tool": (
        {"messages": MESSAGES, "tools": [{"type": "web"}]},
        "unsupported_parameter",
        "tools[0].type",
    ),
    "tool_choice": ({"messages": MESSAGES, "tool_choice": "required"}, "conflicting_parameters", "tool_choice"),
    "logprobs": ({"messages": MESSAGES, "logprobs": 5}, "invalid_type", "logprobs"),
    "top_logprobs": ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    "top_logprobs alone": ({"messages": MESSAGES, "top_logprobs": 5}, "conflicting_parameters", "top_logprobs"),
    "modalities": ({"messages": MESSAGES, "modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    "audio": ({"messages": MESSAGES, "audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
    "an option of another template": (
        {"messages": MESSAGES, "chat_template_kwargs": {"messages": "x"}},
        "unsupported_parameter",
        "chat_template_kwargs.messages",
    ),
    "two efforts": (
        {"messages": MESSAGES, "reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        "conflicting_parameters",
        "reasoning_effort",
    ),
    "an option that is a list": (
        {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": []}},
        "invalid_type",
        "chat_template_kwargs[...]",
    ),
    "continue_final_message": (
        {"messages": MESSAGES, "continue_final_message": True},
        "conflicting_parameters",
        "continue_final_message",
    ),
    "a beginning that is no text": (
        {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": []}], "continue_final_message": True},
        "conflicting_parameters",
        "continue_final_message",
    ),
    "continued and begun": (
        {
            "messages": [*MESSAGES, {"role": "assistant", "content": "The"}],
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        "conflicting_parameters",
        "add_generation_prompt",
    ),
    "an echo of nothing": ({"messages": MESSAGES, "echo": True}, "conflicting_parameters", "echo"),
    "two ways to think": (
        {"messages": MESSAGES, "think": True, "chat_template_kwargs": {"enable_thinking": False}},
        "conflicting_parameters",
        "enable_thinking",
    ),
    "chat_template": ({"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "unsupported_parameter", "chat_template"),
}


@pytest.mark.parametrize("row", ONLY_CHAT)
async def test_chats(shared: Running, row: str) -> None:
    fields, code, param = ONLY_CHAT[row]
    await check(shared, 400, code, param, url=CHAT, json=fields)


ONLY_COMPLETION: dict[str, tuple[dict[str, Any], str, str]] = {
    "no prompt": ({}, "missing_required_parameter", "prompt"),
    "prompt number": ({"prompt": 5}, "invalid_type", "prompt"),
    "empty text": ({"prompt": ""}, "empty_prompt", "prompt"),
    "empty list": ({"prompt": []}, "invalid_value", "prompt"),
    "an empty list of ids": ({"prompt": [[]]}, "empty_prompt", "prompt"),
    "a mixture": ({"prompt": ["a", 1]}, "invalid_value", "prompt"),
    "a negative id": ({"prompt": [5, -1]}, "invalid_token_id", "prompt"),
    "an id behind the vocabulary": ({"prompt": [443]}, "invalid_token_id", "prompt"),
    "a huge id": ({"prompt": [[1 << 80]]}, "invalid_token_id", "prompt"),
    "one bad prompt of two": ({"prompt": ["a", "z" * 2000]}, "context_length_exceeded", "prompt"),
    "too long": ({"prompt": [5] * CONTEXT_TOKENS}, "context_length_exceeded", "prompt"),
    "too many prompts": ({"prompt": ["a"] * 129}, "invalid_value", "prompt"),
    "too many answers": ({"prompt": ["a"] * 128, "n": 9}, "conflicting_parameters", "n"),
    "logprobs": ({"prompt": "a", "logprobs": 21}, "invalid_value", "logprobs"),
    "suffix": ({"prompt": "a", "suffix": "b"}, "no_infill_tokens", "suffix"),
}


@pytest.mark.parametrize("row", ONLY_COMPLETION)
async def test_completions(shared: Running, row: str) -> None:
    fields, code, param = ONLY_COMPLETION[row]
    await check(shared, 400, code, param, url=COMPLETION, json=fields)


async def test_a_refusal_names_both_lengths(shared: Running) -> None:
    answer = await shared.post(COMPLETION, prompt=[5] * 200, max_tokens=100)
    message = answer.json()["error"]["message"]
    assert str(CONTEXT_TOKENS) in message and "200" in message and "100" in message


async def test_a_refusal_names_both_numbers_of_samples(shared: Running) -> None:
    for prompts, samples, words in ((1, 17, ("17", "16")), (128, 9, ("1152", "1024"))):
        answer = await shared.post(COMPLETION, prompt=["a"] * prompts, n=samples)
        message = answer.json()["error"]["message"]
        assert all(word in message for word in words), message


async def test_headers_that_are_too_large(shared: Running) -> None:
    await check(shared, 431, "headers_too_large", None, url=CHAT, content=b"{}", headers={"x-long": "a" * 70_000})
