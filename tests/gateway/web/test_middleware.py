"""What is the same for every path: HEAD, OPTIONS, ids, and what browsers are told."""

import logging
import re

import pytest
from starlette.datastructures import Headers

from contracts.errors import ConfigError
from gateway.web.cross_origin import CrossOrigin
from tests.gateway.running import Running

PAGE = "https://page.example"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/health", "/stats", "/metrics", "/version", "/"])
async def test_head_is_get_without_a_body(running: Running, path: str) -> None:
    head, get = await running.client.head(path), await running.client.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b"" and head.headers["content-type"] == get.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


async def test_head_of_what_is_only_posted(running: Running) -> None:
    answer = await running.client.head("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")


async def test_a_slash_at_the_end_changes_nothing(running: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Hi!"}]}
    assert (await running.client.post("/v1/chat/completions/", json=body)).json()["choices"]
    message = await running.client.post("/v1/messages/", json={**body, "model": "tiny", "max_tokens": 3})
    assert message.json()["type"] == "message" and message.headers["request-id"]
    for path in ("/v1/models", "/v1/models/tiny", "/health", "/docs", "/version"):
        plain, slash = await running.client.get(path), await running.client.get(f"{path}/")
        assert (slash.status_code, slash.content) == (200, plain.content), path
    assert (await running.client.options("/v1/models/")).headers["allow"] == "GET, HEAD, OPTIONS"
    assert (await running.client.get("/nothing/")).status_code == 404


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/messages", "/v1/messages"),
        ("/models/tiny", "/v1/models/tiny"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//completions", "/v1/completions"),
        ("/v1/health", "/health"),
        ("/nothing", ""),
        ("/v1/nothing", ""),
    ],
)
async def test_a_base_url_that_is_not_right_is_told(path: str, near: str, running: Running) -> None:
    error = (await running.client.post(path, json={})).json()["error"]
    assert error["code"] == "not_found"
    hint = f"; there is {near}: is the client's base URL right?" if near else ""
    assert error["message"] == f"there is no {path} here{hint}"


async def test_options_tell_what_a_path_takes(running: Running) -> None:
    for path, methods in (("/v1/models", "GET, HEAD, OPTIONS"), ("/v1/completions", "OPTIONS, POST")):
        answer = await running.client.options(path)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, methods, b"")
    answer = await running.client.put("/ping")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST")
    answer = await running.client.options("/nothing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_page_may_send_json_with_a_key(running: Running) -> None:
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    answer = await running.client.options("/v1/chat/completions", headers=asked)
    assert answer.status_code == 204 and answer.content == b""
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("fields", [{}, {"temperature": 9}, {"model": "nothing"}])
async def test_a_page_may_read_answers_and_errors(running: Running, fields: dict[str, object]) -> None:
    body = {"messages": [{"role": "user", "content": "Hi!"}]} | fields
    answer = await running.client.post("/v1/chat/completions", json=body, headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert {"x-request-id", "retry-after"} <= set(answer.headers["access-control-expose-headers"].split(", "))


@pytest.mark.parametrize("path", ["/stats", "/metrics"])
async def test_no_page_reads_the_operators_figures(running: Running, path: str) -> None:
    asked = {"origin": PAGE, "access-control-request-method": "GET"}
    for answer in (
        await running.client.get(path, headers={"origin": PAGE}),
        await running.client.options(path, headers=asked),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_an_empty_key_is_none(running: Running) -> None:
    """As Prometheus in compose.yaml sends it where clients need no key."""
    assert (await running.client.get("/metrics", headers={"authorization": "Bearer"})).status_code == 200


async def test_who_is_no_page_is_told_nothing_of_pages(running: Running) -> None:
    answer = await running.client.get("/v1/models")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "server" not in answer.headers


def of(origin: str) -> Headers:
    return Headers({"origin": origin, "access-control-request-method": "POST"})


def test_named_origins_alone_are_allowed() -> None:
    pages = CrossOrigin("https://one.example, http://localhost:3000")
    for origin in ("https://one.example", "http://localhost:3000"):
        told = pages.preflight("/v1/models", of(origin))
        assert told["access-control-allow-origin"] == origin and told["vary"] == "origin"
    for origin in ("https://two.example", "http://one.example", "https://one.example.evil", "null"):
        assert pages.headers("/v1/models", of(origin)) == pages.preflight("/v1/models", of(origin)) == {}
    assert CrossOrigin("").preflight("/v1/models", of(PAGE)) == {}


def test_headers_that_a_page_asks_for_are_repeated_only_where_they_are_names() -> None:
    asked = Headers({"origin": PAGE, "access-control-request-headers": "a\r\nset-cookie: b"})
    assert "set-cookie" not in str(CrossOrigin("*").preflight("/v1/models", asked))


def test_what_is_no_origin_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--allow-origins: 'one\.example'"):
        CrossOrigin("https://one.example,one.example")


async def test_a_clients_id_comes_back_and_is_logged(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    named = {"x-request-id": "trace-7f/3"}
    body = {"messages": [{"role": "user", "content": "Hi!"}]}
    with caplog.at_level(logging.INFO, "baton.gateway"):
        answer = await running.client.post("/v1/chat/completions", json=body, headers=named)
    assert answer.headers["x-request-id"] == "trace-7f/3"
    own = answer.json()["id"].removeprefix("chatcmpl-")
    assert own != "trace-7f/3", "the answer's id is the server's"
    assert f"request {own} is trace-7f/3 to its client" in caplog.text
    assert "trace-7f/3" not in (await running.client.get("/metrics")).text
    refusal = await running.client.get("/nothing", headers=named)
    assert refusal.headers["x-request-id"] == "trace-7f/3"


@pytest.mark.parametrize("name", ["", "two words", "x" * 129, "é", "a\tb"])
async def test_an_id_that_is_no_short_word_is_not_repeated(running: Running, name: str) -> None:
    answer = await running.client.get("/version", headers=[(b"x-request-id", name.encode())])
    assert re.fullmatch(r"[\w-]+", answer.headers["x-request-id"]) and answer.headers["x-request-id"] != name


@pytest.mark.parametrize("stream", [False, True])
async def test_times_are_told_in_the_head(running: Running, stream: bool) -> None:
    answer = await running.chat(stream=stream)
    times = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert set(times) == {"queue", "prefill", "ttft", "total"}
    assert (float(times["queue"]), float(times["prefill"])) == (1.5, 2.5)
    assert 0 < float(times["ttft"]) <= float(times["total"])


async def test_errors_on_anthropics_path_have_its_shape(running: Running) -> None:
    for path in ("/v1/messages", "/v1/messages/nothing"):
        answer = await running.client.put(path)
        body = answer.json()
        assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
        assert set(body["error"]) == {"type", "message", "details"}
        assert body["request_id"] == answer.headers["request-id"]
    assert set((await running.client.get("/v1/messagesx")).json()) == {"error"}
