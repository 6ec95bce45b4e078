"""Holds a test for each class of attack on authentication that such systems have suffered, named after it."""

import asyncio
import hmac
import logging
from functools import partial
from pathlib import Path

import httpx
import pytest

from contracts.messages.wire import encode
from infra.keys.key_file import change_keys
from infra.keys.key_ring import KeyRing
from tests.gateway.keys.conftest import KeyMaker
from tests.gateway.running import Running, Serve, until
from tests.waiting import DEADLINE_S

TEXT = "a very private question about Gustav the elephant"


async def said(running: Running, *lines: str) -> str:
    """What the gateway says to a request of these lines, up to the connection's end."""
    host, port = running.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode())
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.read()
    writer.close()
    return answer.decode()


HOSTS = ["x/health?", "x/health#", "health", "127.0.0.1/health", "x\t/health", "", "/health?", "x:80/ping?y="]


async def test_auth_bypassed_through_host(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """CVE-2026-48710: a URL that is put together from the Host header decided whether a key was needed."""
    make("one")
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    for path in ("/v1/models", "/metrics", "/stats", "/", "/nothing"):
        for host in HOSTS:
            head = (await said(running, f"GET {path} HTTP/1.1", f"host: {host}")).partition("\r\n")[0]
            assert head in ("HTTP/1.1 401 Unauthorized", "HTTP/1.1 400 Bad Request"), (path, host)
            more = ["x-forwarded-prefix: /health", "x-original-url: /health", "x-rewrite-url: /health"]
            head = (await said(running, f"GET {path} HTTP/1.1", f"host: {host}", *more)).partition("\r\n")[0]
            assert head in ("HTTP/1.1 401 Unauthorized", "HTTP/1.1 400 Bad Request"), (path, host)


PATHS = ["/health/../metrics", "/health/..%2fmetrics", "//metrics", "/metrics/", "/METRICS", "/metrics;/health"]
PATHS += ["/%6detrics", "/metrics%00", "/metrics%2f", "/./metrics", "/health%2f..%2fmetrics", "/metrics?/health"]
PATHS += ["/metrics#/health", "/health/x", "/healthz", "/ping/../stats", "http://x/metrics", "http://health/stats"]
PATHS += ["/v1/models/../../health", "/v1//models", "*", "/ready%3f/../v1/models"]


async def test_auth_bypassed_through_path(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """CVE-2026-48710, and routes that stood open beside `--api-key`: every path but three needs a key, known or not."""
    make("one")
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    for path in PATHS:
        for method in ("GET", "POST", "HEAD", "OPTIONS"):
            head = (await said(running, f"{method} {path} HTTP/1.1", "host: x")).partition("\r\n")[0]
            assert head in ("HTTP/1.1 401 Unauthorized", "HTTP/1.1 400 Bad Request"), (method, path)
    for path in ("/health", "/health/", "/ready", "/ping", "/%68ealth", "/health?x=/metrics"):
        assert (await said(running, f"GET {path} HTTP/1.1", "host: x")).startswith("HTTP/1.1 200 OK"), path


def test_key_comparison_timing(key_file: Path, make: KeyMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-59425: each key is hashed once and compared once, whether it is right, nearly right, or unknown."""
    right = make("one")
    ring = KeyRing([str(key_file)])
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    offers = [right, right[:-1] + ("0" if right[-1] != "0" else "1"), right[:20] + "0" * 63, "baton-" + "0" * 77, "x"]
    found = [ring.find(offer) is not None for offer in offers]
    assert found == [True, False, False, False, False]
    assert compared == [(64, 64)] * len(offers)


async def test_timing_of_a_shared_prefix_cache(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """CVE-2025-46570: KV is salted by tenant, so no tenant finds out by a fast answer what another has asked."""
    keys = [make("a", tenant="acme"), make("b", tenant="acme"), make("c", tenant="other"), make("acme-2")]
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    for key in keys:
        headers = {"authorization": f"Bearer {key}"}
        body = {"prompt": TEXT, "max_tokens": 2}
        assert (await running.client.post("/v1/completions", json=body, headers=headers)).status_code == 200
    one, same, other, third = (job.prompt for job in running.peer("prefill").jobs)
    assert one.salt == same.salt and len({one.salt, other.salt, third.salt, ""}) == 4
    assert [prompt.tenant for prompt in (one, same, other, third)] == ["acme", "acme", "other", "acme-2"]


async def test_a_stored_response_of_another_tenant_is_not_found(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """Reading another's object by its id: keys of one tenant share what is stored, others do not know that it is."""
    mine, colleague, other = make("a", tenant="acme"), make("b", tenant="acme"), make("c", operator=True)
    running = await serve("prefill", "decode", api_keys=(str(key_file),))

    async def ask(key: str, method: str, path: str, **more: object) -> httpx.Response:
        return await running.client.request(method, path, headers={"authorization": f"Bearer {key}"}, **more)  # type: ignore[arg-type]

    body = {"input": "Hi!", "max_output_tokens": 16}
    stored = (await ask(mine, "POST", "/v1/responses", json=body)).json()["id"]
    for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
        assert (await ask(other, method, f"/v1/responses/{stored}{path}")).status_code == 404, path
    again = body | {"previous_response_id": stored}
    assert (await ask(other, "POST", "/v1/responses", json=again)).status_code == 400
    assert (await ask(colleague, "POST", "/v1/responses", json=again)).status_code == 200
    assert (await ask(colleague, "GET", f"/v1/responses/{stored}")).status_code == 200


async def test_client_steers_its_priority(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """A body that asks for more than its key may have is refused, and one that asks for nothing has what it may."""
    headers = {"authorization": f"Bearer {make('late', priority=3, slo='ttft=2s', weight=0.5)}"}
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    body = {"prompt": "Hi!", "max_tokens": 2}
    for more, status in (({"priority": 2}, 403), ({"priority": -9}, 403), ({"priority": 3}, 200), ({}, 200)):
        answer = await running.client.post("/v1/completions", json=body | more, headers=headers)
        assert answer.status_code == status
    for job in running.peer("prefill").jobs:
        assert (job.prompt.priority, job.prompt.weight) == (3, 0.5)
        assert 1.0 < job.due - job.queued_at <= 2.0
    assert len(running.peer("prefill").jobs) == 2
    fast = {**headers, "x-slo-ttft-ms": "1"}
    assert (await running.client.post("/v1/completions", json=body, headers=fast)).status_code == 400


async def test_unbounded_body_before_authentication(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """CVE-2025-48956: nobody without a key has a body read, nor is one asked to send it."""
    make("one")
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", "content-type: application/json"]
    for more in (["content-length: 4000000", "expect: 100-continue"], ["content-length: 99999999999"]):
        answer = await said(running, *lines, *more)
        assert answer.startswith("HTTP/1.1 401 Unauthorized"), more
        assert "missing_api_key" in answer


async def test_an_enormous_key_is_refused(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """CVE-2025-48956: a header of the largest size costs one hash, and one beyond it a 431."""
    make("one")
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    for size, status in ((60_000, 401), (70_000, 431)):
        answer = await running.client.get("/v1/models", headers={"authorization": "Bearer " + "k" * size})
        assert answer.status_code == status


async def test_a_revoked_key_lives_on(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """A key that is taken out of the file is refused soon, on connections that were opened with it as well."""
    headers = {"authorization": f"Bearer {make('one')}"}
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    assert (await running.client.get("/v1/models", headers=headers)).status_code == 200
    change_keys(key_file, lambda keys: [])
    ring = running.gateway._keys
    assert ring is not None
    await until(lambda: not ring._known, "the file to be read again", 10)
    answer = await running.client.get("/v1/models", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_stream_outlives_its_key(serve: Serve, key_file: Path, make: KeyMaker) -> None:
    """What was begun with a key that is revoked ends with an error within seconds, in line as well; others go on.

    Behind one that stays at the head of the line nobody's turn comes: who stands there has to be woken.
    """
    stays, gone = ({"authorization": f"Bearer {make(name)}"} for name in ("first", "second"))
    running = await serve("prefill", api_keys=(str(key_file),), max_requests=2)
    await running.add("decode", step=0.5)

    async def ask(headers: dict[str, str]) -> httpx.Response:
        body = {"prompt": TEXT, "max_tokens": 64, "stream": True}
        return await running.client.post("/v1/completions", json=body, headers=headers)

    tasks = [asyncio.create_task(ask(headers)) for headers in (gone, stays)]
    await until(lambda: len(running.peer("decode").holding) == 2, "two in progress")
    for count, headers in enumerate((stays, stays, gone, gone), 1):
        tasks.append(asyncio.create_task(ask(headers)))
        await until(partial(_waits, running, count), f"{count} in line")
    change_keys(key_file, lambda keys: [key for key in keys if key.name != "second"])
    async with asyncio.timeout(DEADLINE_S):
        begun, *in_line = await asyncio.gather(tasks[0], *tasks[4:])
    assert begun.status_code == 200 and '"code":"invalid_api_key"' in begun.text and begun.text.endswith("[DONE]\n\n")
    assert [one.status_code for one in in_line] == [401, 401]
    assert running.gateway.requests.waiting() == 1, "the others' turn has not come"
    running.peer("decode").faults.clear()
    for answer in await asyncio.gather(*tasks[1:4]):
        assert answer.status_code == 200 and "error" not in answer.text


def _waits(running: Running, count: int) -> bool:
    return running.gateway.requests.waiting() == count


async def test_keys_and_texts_leak_into_logs_and_redis(
    serve: Serve, key_file: Path, make: KeyMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a key nor a request's text is in the log, in a job, in an answer or in Redis, whatever becomes of it."""
    caplog.set_level(logging.DEBUG)
    good, wrong = make("one"), "baton-0123456789ab-" + "5" * 64
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4}
    seen = ""
    for key in (good, wrong, "my-own-words"):
        for path in ("/v1/chat/completions", "/v1/messages", "/metrics", f"/v1/models/{TEXT}", "/v1/responses/x"):
            for header in ("authorization", "x-api-key"):
                value = f"Bearer {key}" if header == "authorization" else key
                answer = await running.client.post(path, json=body, headers={header: value})
                seen += f"{answer.headers}" + ("" if TEXT[:8] in path else answer.text)
    await running.idle()
    jobs = b"".join(encode(job) for job in running.peer("prefill").jobs)
    kept = b""
    for place in await running.store.keys("*"):
        kept += str(place).encode() + (await running.store.dump(place) or b"")
    for secret in (good, good[-64:], wrong, wrong[-64:], "my-own-words"):
        assert secret not in caplog.text and secret not in seen
        assert secret.encode() not in jobs and secret.encode() not in kept
    assert TEXT not in caplog.text and TEXT.encode() not in kept and jobs
