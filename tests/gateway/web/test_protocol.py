"""What clients see on the wire, read from real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.web import protocol
from gateway.web.protocol import CHUNK_HEAD_BYTES, MAX_HEAD_BYTES
from tests.gateway.running import Running, Serve, until
from tests.waiting import DEADLINE_S

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi!"}]


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """What comes up to the connection's end, which has to be an orderly one."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read()

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """The next answer that has a length."""
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, headers = parsed(head)
            return status, headers, await self.reader.readexactly(int(headers[b"content-length"]))


def parsed(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    line, *headers = head.split(b"\r\n\r\n")[0].split(b"\r\n")
    return int(line.split()[1]), dict(header.lower().split(b": ", 1) for header in headers)


def finals(said: bytes) -> bytes:
    while said.startswith(protocol.CONTINUE_RESPONSE):
        said = said.removeprefix(protocol.CONTINUE_RESPONSE)
    return said


@asynccontextmanager
async def connected(running: Running) -> AsyncIterator[Wire]:
    host, port = running.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def request(body: bytes, *headers: str, version: str = "1.1", length: int | None = None) -> bytes:
    """A chat request as bytes; with a negative `length`, none is named."""
    size = len(body) if length is None else length
    lines = [f"POST {CHAT} HTTP/{version}", "host: x", "content-type: application/json", *headers]
    lines += [f"content-length: {size}"] if size >= 0 else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def chat(**more: Any) -> bytes:
    return json.dumps({"messages": MESSAGES} | more).encode()


def code(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


HOSTS = {
    "none": ("1.1", "", "invalid_host"),
    "none, in HTTP/1.0": ("1.0", "", ""),
    "empty": ("1.1", "host:\r\n", ""),
    "a name and a port": ("1.1", "host: a-b.example:8000\r\n", ""),
    "an IPv6 address": ("1.1", "HOST: [::1]:8000\r\n", ""),
    "two": ("1.1", "host: x\r\nhost: x\r\n", "invalid_host"),
    "two, in HTTP/1.0": ("1.0", "host: x\r\nhost: y\r\n", "invalid_host"),
    "a path": ("1.1", "host: x/y\r\n", "invalid_host"),
    "two words": ("1.1", "host: x y\r\n", "invalid_host"),
}


@pytest.mark.parametrize("name", HOSTS)
async def test_a_request_has_one_host(running: Running, name: str) -> None:
    """RFC 9112, 3.2: servers refuse others, for whoever passes them on may take another host than the server."""
    version, line, refusal = HOSTS[name]
    async with connected(running) as wire:
        await wire.send(f"GET /v1/models HTTP/{version}\r\n{line}\r\n".encode())
        said = await wire.rest() if version == "1.0" else b""
        status, body = (int(said.split()[1]), said.partition(b"\r\n\r\n")[2]) if said else (await wire.answer())[::2]
        assert (status, code(body) if refusal else "") == (400 if refusal else 200, refusal)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_client_that_sends_too_much_reads_why(serve: Serve, connection: str) -> None:
    """It writes all before it reads anything, as urllib and many others do."""
    running = await serve("decode", max_body=1000)
    async with connected(running) as wire:
        await wire.send(request(b" " * 30_000_000, f"connection: {connection}"))
        status, _, body = await wire.answer()
        assert (status, code(body)) == (413, "body_too_large")
        if connection == "keep-alive":
            await wire.send(request(chat()))
            assert (await wire.answer())[0] == 200
        else:
            assert await wire.rest() == b""


async def test_what_is_dropped_is_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_DROPPED_BYTES", 1_000_000)
    running = await serve("decode", max_body=1000)
    async with connected(running) as wire:
        with pytest.raises(ConnectionError):
            while True:
                await wire.send(request(b" " * 1_000_000, length=1 << 40))


async def test_a_half_closed_client_gets_its_answer(running: Running) -> None:
    for stream in (False, True):
        async with connected(running) as wire:
            await wire.send(request(chat(stream=stream)))
            wire.writer.write_eof()
            said = finals(await wire.rest())
            assert parsed(said)[0] == 200
            assert b"[DONE]" in said if stream else json.loads(said.split(b"\r\n\r\n", 1)[1])["choices"]
    assert [record.outcome for record in await running.finished(2)] == ["finished", "finished"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_is_gone_is_noticed_behind_its_last_bytes(serve: Serve, stream: bool) -> None:
    running = await serve("prefill", "decode")
    running.peer("prefill").faults["deaf_to_jobs"] = 99
    async with connected(running) as wire:
        await wire.send(request(chat(stream=stream)))
        await until(lambda: len(running.gateway.requests), "the request")
    await running.idle()
    assert [record.outcome for record in await running.finished(1)] == ["cancelled"]


async def test_half_a_body_is_answered(running: Running) -> None:
    async with connected(running) as wire:
        await wire.send(request(chat(), length=1000))
        wire.writer.write_eof()
        status, _, body = await wire.answer()
        assert (status, code(body)) == (400, "body_incomplete")
        assert await wire.rest() == b""


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_gets_no_chunks(running: Running, stream: bool) -> None:
    async with connected(running) as wire:
        await wire.send(request(chat(stream=stream), version="1.0"))
        head, body = (await wire.rest()).split(b"\r\n\r\n", 1)
        status, headers = parsed(head)
        assert status == 200 and b"transfer-encoding" not in headers and headers[b"connection"] == b"close"
        if stream:
            assert body.startswith(b"data: ") and body.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(body)["choices"] and len(body) == int(headers[b"content-length"])


async def test_chunk_extensions_are_bounded(running: Running) -> None:
    head = request(b"", "transfer-encoding: chunked", length=-1)
    async with connected(running) as wire:
        await wire.send(head)
        for part in (b"1;", b"x" * MAX_HEAD_BYTES, b"x" * MAX_HEAD_BYTES, b"x" * MAX_HEAD_BYTES):
            await wire.send(part)
            await asyncio.sleep(0)
        status, _, body = await wire.answer()
        assert (status, code(body)) == (400, "invalid_http")


async def test_small_chunks_are_no_extensions(running: Running) -> None:
    body = chat(user="x" * 400)
    async with connected(running) as wire:
        await wire.send(request(b"", "transfer-encoding: chunked", length=-1))
        size = b"0" * (CHUNK_HEAD_BYTES - 8)
        for byte in body:
            await wire.send(b"%s1\r\n%c\r\n" % (size, byte))
        await wire.send(b"0\r\n\r\n")
        assert (await wire.answer())[0] == 200


async def test_a_head_has_a_deadline(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.05)
    async with connected(running) as wire:
        await wire.send(b"POST / HTTP/1.1\r\nhost:")
        status, _, body = await wire.answer()
        assert (status, code(body)) == (408, "headers_timeout")
        assert await wire.rest() == b""
    async with connected(running) as wire:
        assert await wire.rest() == b"", "who asks for nothing is told nothing"
    async with connected(running) as wire:  # a second request on a connection that is kept
        await wire.send(request(chat()))
        assert (await wire.answer())[0] == 200
        await wire.send(b"POST /")
        assert (await wire.answer())[0] == 408


async def test_no_deadline_of_heads_ends_an_answer(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.01)
    running.text = "Hello " * 30
    async with connected(running) as wire:
        await wire.send(request(chat()) + b"POST /")
        assert (await wire.answer())[0] == 200
        assert (await wire.answer())[0] == 408


async def test_idle_connections_make_room(serve: Serve) -> None:
    running = await serve("decode", max_connections=8)
    async with connected(running) as oldest:
        others = [connected(running) for _ in range(8)]
        for other in others:
            await other.__aenter__()
        assert await oldest.rest() == b""
        assert (await running.chat()).status_code == 200
        for other in others:
            await other.__aexit__(None, None, None)


async def test_where_all_connections_are_busy_more_are_refused(serve: Serve) -> None:
    running = await serve("prefill", "decode", max_connections=1)
    running.peer("prefill").faults["deaf_to_jobs"] = 99
    async with connected(running) as busy:
        await busy.send(request(chat()))
        await until(lambda: len(running.gateway.requests), "the request")
        async with connected(running) as refused:
            await refused.send(request(chat()))
            status, headers, body = await refused.answer()
            assert (status, code(body)) == (503, "too_many_connections") and headers[b"retry-after"] == b"1"
            assert await refused.rest() == b""
    await running.idle()


async def test_what_is_no_http_behind_a_request_does_not_spoil_its_answer(running: Running) -> None:
    async with connected(running) as wire:
        await wire.send(request(chat()) + b"\x00\x01\x02")
        assert (await wire.answer())[0] == 200
        assert await wire.rest() == b""


async def test_a_client_that_waits_for_leave_to_send_is_refused_at_once(serve: Serve) -> None:
    running = await serve("decode", max_body=1000)
    async with connected(running) as wire:
        await wire.send(request(b"", "expect: 100-continue", length=5000))
        status, headers, body = await wire.answer()
        assert (status, code(body), headers[b"connection"]) == (413, "body_too_large", b"close")
        assert await wire.rest() == b""


async def test_bodies_that_are_being_read_have_a_bound_together(serve: Serve) -> None:
    running = await serve("prefill", "decode", max_body=1000, body_memory=1500)
    async with connected(running) as slow:
        await slow.send(request(b" " * 900, length=1000))
        async with connected(running) as other:
            while True:  # until the first one's bytes are counted
                await other.send(request(b" " * 700 + chat()))
                status, headers, body = await other.answer()
                if status != 200:
                    break
            assert (status, code(body), headers[b"retry-after"]) == (503, "too_many_bodies", b"1")
            await other.send(request(chat()))
            assert (await other.answer())[0] == 200
    async with connected(running) as after:
        while True:  # until the first one's end is known
            await after.send(request(b" " * 700 + chat()))
            if (await after.answer())[0] == 200:
                break
