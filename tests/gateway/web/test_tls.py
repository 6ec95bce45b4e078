"""The gateway over TLS: the same answers, a deadline for handshakes, and clients that are gone are noticed."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from infra.network.tls import trusting
from tests.certificates import make_certificate
from tests.gateway.running import TEXT, Running, Serve, until
from tests.waiting import DEADLINE_S

BODY = {"messages": [{"role": "user", "content": "Hi!"}]}


@pytest.fixture
async def secured(serve: Serve, tmp_path: Path) -> Running:
    cert, key = make_certificate(tmp_path / "tls")
    return await serve("prefill", "decode", tls_cert=str(cert), tls_key=str(key))


def client(running: Running, tmp_path: Path) -> httpx.AsyncClient:
    verify = trusting(str(tmp_path / "tls" / "cert.pem"), "--ca")
    return httpx.AsyncClient(base_url=running.url, verify=verify, timeout=DEADLINE_S)


async def test_answers_whole_and_streamed_are_the_same_over_tls(secured: Running, tmp_path: Path) -> None:
    assert secured.url.startswith("https://")
    async with client(secured, tmp_path) as asking:
        answer = await asking.post("/v1/chat/completions", json=BODY)
        assert answer.json()["choices"][0]["message"]["content"] == TEXT
        answer = await asking.post("/v1/chat/completions", json=BODY | {"stream": True})
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        texts = [json.loads(one)["choices"][0]["delta"].get("content", "") for one in events]
        assert "".join(texts) == TEXT and answer.text.endswith("data: [DONE]\n\n")
        assert (await asking.post("/v1/chat/completions", content=b"x" * 100)).status_code == 415
        assert secured.url in (await asking.get("/")).text
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient(base_url=secured.url) as stranger:
            await stranger.get("/health")


async def test_who_does_not_shake_hands_is_cut_and_harms_nobody(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.web.server.HANDSHAKE_SECONDS", 0.2)
    cert, key = make_certificate(tmp_path / "tls")
    running = await serve("prefill", "decode", tls_cert=str(cert), tls_key=str(key))
    host, port = running.url.removeprefix("https://").rsplit(":", 1)
    for said in (b"", b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(DEADLINE_S):
            heard = await reader.read()
        assert b"HTTP" not in heard and b"baton" not in heard
        writer.close()
    async with client(running, tmp_path) as asking:
        assert (await asking.get("/ready")).status_code == 200
    assert not [entry for entry in caplog.records if entry.levelname in ("ERROR", "CRITICAL")]


async def test_a_client_that_is_gone_is_noticed(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = make_certificate(tmp_path / "tls")
    running = await serve("prefill", tls_cert=str(cert), tls_key=str(key))
    await running.add("decode", step=0.05)
    host, port = running.url.removeprefix("https://").rsplit(":", 1)
    body = json.dumps(BODY | {"stream": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}"
    for orderly in (True, False):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting(str(cert), "--ca"))
        writer.write(head.encode() + b"\r\n\r\n" + body)
        async with asyncio.timeout(DEADLINE_S):
            await reader.readuntil(b"data: ")
        assert len(running.gateway.requests) == 1
        if orderly:
            writer.close()
        else:
            writer.transport.abort()
        await until(lambda: not len(running.gateway.requests), "its request to end", 5)
    assert not [entry for entry in caplog.records if entry.name == "asyncio" and entry.levelname != "DEBUG"]
