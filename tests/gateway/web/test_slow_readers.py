"""A client that stops reading its stream is waited for, then cut off; streams of others are whole meanwhile."""

import asyncio
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.requests import stream
from infra.network.listening import listen
from tests.gateway import running as running_module
from tests.gateway.running import TEXT, Serve

BUFFER_BYTES = 4096  # bytes of a socket's buffer
LONG = TEXT * 20


def small_buffers(host: str, port: int) -> socket.socket:
    """A listener whose connections soon have to be waited for."""
    listener = listen(host, port)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return listener


async def asked(url: str, body: bytes) -> socket.socket:
    address, connection = urlsplit(url), socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (address.hostname, address.port))
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    await loop.sock_sendall(connection, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


async def test_a_client_that_does_not_read_disturbs_nobody(
    serve: Serve, calling_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_UNREAD_TOKENS", 50)
    monkeypatch.setattr(running_module, "listen", small_buffers)
    running = await serve(at=calling_model)
    await running.add("decode", step=0.001)
    running.text = LONG
    body = {"prompt": "a", "stream": True, "max_tokens": 1900, "temperature": 0}
    with await asked(running.url, json.dumps(body).encode()):
        pieces = []
        async with running.client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    pieces.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
        assert "".join(pieces) == LONG
        assert len(pieces) > 100, "it was read while it came"
        records = await running.finished(2)
    assert sorted(one.reason for one in records) == ["client_too_slow", "stop"]
