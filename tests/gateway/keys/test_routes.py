"""Every route, without a key, with a wrong one, with a revoked one, and with one that does."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from gateway.web.app import make_app
from gateway.web.middleware import RequestMiddleware
from infra.keys.key_file import change_keys
from tests.gateway.keys.conftest import KeyMaker
from tests.gateway.running import Running, Serve

OPEN = {"/health", "/ready", "/ping"}
OPERATORS = {"/metrics", "/stats", "/load_runs", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}


def routes(running: Running) -> Iterator[tuple[str, str]]:
    """Each method of each path of the application, as it is made, and what is no path of it."""
    surface = make_app(running.gateway)
    assert isinstance(surface, RequestMiddleware)
    for route in surface._app.routes:  # type: ignore[attr-defined]
        assert isinstance(route, Route)
        for method in sorted(route.methods or ()):
            yield method, route.path.replace("{id}", "resp_1").replace("{model:path}", "tiny")
    yield from (("GET", "/nothing"), ("POST", "/v1/embeddings"), ("PUT", "/v1/models"), ("DELETE", "/health/"))
    yield from (("GET", "/metrics/"), ("POST", "/v1/messages/"))
    yield from (("OPTIONS", "/v1/models"), ("HEAD", "/v1/models"))


def encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def shape(path: str, answer: httpx.Response) -> tuple[str, str]:
    """The type and the code of an error, in the form of the API that was asked; Ollama's has no type."""
    body = answer.json()
    if path.startswith("/api/"):
        assert set(body) == {"error", "code"} and isinstance(body["error"], str)
        return "", body["code"]
    if path.startswith("/v1/messages"):
        assert set(body) == {"type", "error", "request_id"}
        return body["error"]["type"], body["error"]["details"]["error_code"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]["type"], body["error"]["code"]


async def test_every_route_asks_for_a_key(serve: Serve, make: KeyMaker, key_file: Path) -> None:
    good, revoked = make("good"), make("revoked")
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    change_keys(key_file, lambda keys: [key for key in keys if key.name != "revoked"])
    running.gateway._keys.refresh()  # type: ignore[union-attr]
    table = [*routes(running)]
    assert len(table) > 25 and {path for _, path in table} >= OPEN | OPERATORS | {"/", "/docs", "/openapi.json"}
    wrong = good[:-1] + ("0" if good[-1] != "0" else "1")
    offers: list[tuple[dict[str, str], str]] = [
        ({}, "missing_api_key"),
        ({"authorization": "Bearer"}, "missing_api_key"),
    ]
    offers += [({"authorization": "Basic " + good}, "missing_api_key"), ({"x-api-key": ""}, "missing_api_key")]
    for key in (wrong, revoked, "none", "é", good + "0", good.upper(), "baton-" + "0" * 12 + "-" + "0" * 64):
        offers += [({"authorization": f"Bearer {key}"}, "invalid_api_key"), ({"x-api-key": key}, "invalid_api_key")]
    for method, path in table:
        place = path.removesuffix("/")
        for headers, code in offers:
            answer = await running.client.request(method, path, headers=encoded(headers))
            if place in OPEN:
                assert answer.status_code < 300 or answer.status_code == 405, (method, path)
                continue
            assert answer.status_code == 401, (method, path, headers)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                kind = "authentication_error" if path.startswith("/v1/messages") else "invalid_request_error"
                assert shape(path, answer) == ("" if path.startswith("/api/") else kind, code)
                assert good not in answer.text and revoked not in answer.text
        for headers in ({"authorization": f"Bearer {good}"}, {"x-api-key": good}):
            answer = await running.client.request(method, path, headers=headers)
            if place in OPERATORS:
                assert answer.status_code == 403
                assert method == "HEAD" or shape(path, answer)[1] == "operator_key_required"
            else:
                assert answer.status_code not in (401, 403), (method, path)
    assert await running.jobs() == 0


async def test_an_operators_key_opens_everything(serve: Serve, make: KeyMaker, key_file: Path) -> None:
    headers = {"authorization": f"Bearer {make('me', operator=True)}"}
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    for method, path in routes(running):
        answer = await running.client.request(method, path, headers=headers)
        assert answer.status_code not in (401, 403), (method, path)
    assert (await running.client.get("/metrics", headers=headers)).text.startswith("#")


async def test_a_preflight_needs_no_key_and_a_page_reads_why_it_is_refused(
    serve: Serve, make: KeyMaker, key_file: Path
) -> None:
    key = make("page")
    running = await serve("prefill", "decode", api_keys=(str(key_file),), allow_origins="https://page.example")
    page = {"origin": "https://page.example"}
    asked = {**page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    answer = await running.client.options("/v1/chat/completions", headers=asked)
    assert answer.status_code == 204 and answer.headers["access-control-allow-headers"] == "authorization"
    body = {"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 2}
    for headers, status in (({}, 401), ({"authorization": f"Bearer {key}"}, 200)):
        answer = await running.client.post("/v1/chat/completions", json=body, headers={**page, **headers})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == page["origin"]
        assert answer.headers["x-request-id"]
    other = {"origin": "https://other.example", "authorization": f"Bearer {key}"}
    answer = await running.client.post("/v1/chat/completions", json=body, headers=other)
    assert "access-control-allow-origin" not in answer.headers


async def test_without_a_file_everybody_may_ask(running: Running) -> None:
    for headers in ({}, {"authorization": "Bearer anything"}):
        assert (await running.client.get("/metrics", headers=headers)).status_code == 200


@pytest.mark.parametrize("offer", ["authorization", "x-api-key"])
async def test_the_clients_of_both_apis_are_let_in(serve: Serve, make: KeyMaker, key_file: Path, offer: str) -> None:
    key = make("mine")
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    headers = {offer: key if offer == "x-api-key" else f"bearer  {key}"}
    body = {"model": running.gateway.model, "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 4}
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert (await running.client.post(path, json=body, headers=headers)).status_code == 200
