"""Answers completions with tokens at known moments, and tells these afterwards: a load generator should have seen them.

A process of its own. It prints its port. A stream's tokens come every `--interval-ms`; the moments of `--batch` streams
are the same, as in a decode step, and the moments of the batches are spread evenly. `GET /moments` answers, for each
prompt (its ids with commas between them), when its request came and when each token was written, by the clock that all
processes of a host share.
"""

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import httptools
import msgspec
import uvloop
from msgspec import Struct

from benchmarks.generator.core_waits import CoreWaits

RESPONSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
FIRST_TOKEN_S = 0.02
"""Shortest time from a request to its first token."""
MAX_BODY_BYTES = 1 << 20


class Moments(Struct):
    """When a request came, and when each token of its answer was written; s of `time.perf_counter`."""

    came: float
    written: list[float]


class Told(Struct):
    """The answer to `GET /moments`: the moments of each prompt's answer, and when this process waited for a core."""

    moments: dict[str, Moments]
    waits: CoreWaits


class CompletionBody(Struct):
    """What a request asks for."""

    prompt: list[int] | str
    max_tokens: int


class SteadyAnswers(asyncio.Protocol):
    """Reads the requests of one connection and streams their answers, one after the other."""

    def __init__(self, told: Told, interval_s: float, phase: Callable[[], float]) -> None:
        self._told, self._interval_s, self._phase = told, interval_s, phase
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MAX_BODY_BYTES:
            self._transport.abort()

    def on_message_complete(self) -> None:
        if self._path == b"/moments":
            self._answer(self._told)
            return
        if self._path == b"/v1/models":
            self._answer({"object": "list", "data": [{"id": "none", "object": "model"}]})
            return
        if self._path != b"/v1/completions":
            self._transport.write(NOT_FOUND)
            return
        asked = msgspec.json.decode(self._body, type=CompletionBody)
        moments = Moments(time.perf_counter(), [])
        if isinstance(asked.prompt, list):
            self._told.moments[",".join(map(str, asked.prompt))] = moments
        self._transport.write(RESPONSE_HEAD)
        loop = asyncio.get_running_loop()
        step = int((loop.time() + FIRST_TOKEN_S) / self._interval_s) + 1
        self._next = step * self._interval_s + self._phase()
        loop.call_at(self._next, self._write, moments, asked.max_tokens)

    def _answer(self, content: object) -> None:
        body = msgspec.json.encode(content)
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    def _write(self, moments: Moments, tokens: int) -> None:
        if self._transport.is_closing():
            return
        text = f"{len(moments.written)} "
        event = msgspec.json.encode({"id": "cmpl-1", "choices": [{"index": 0, "text": text}]})
        moments.written.append(time.perf_counter())
        self._transport.write(_chunk(event))
        if len(moments.written) < tokens:
            self._next += self._interval_s
            asyncio.get_running_loop().call_at(self._next, self._write, moments, tokens)
            return
        usage = msgspec.json.encode({"id": "cmpl-1", "choices": [], "usage": {"completion_tokens": tokens}})
        self._transport.write(_chunk(usage) + _chunk(b"[DONE]") + b"0\r\n\r\n")


def _chunk(event: bytes) -> bytes:
    line = b"data: %s\n\n" % event
    return b"%x\r\n%s\r\n" % (len(line), line)


async def serve(options: argparse.Namespace) -> None:
    told = Told({}, CoreWaits([], []))
    told.waits.look()
    streams = 0
    interval_s: float = options.interval_ms / 1000
    batches: int = max(1, options.streams // options.batch)

    def phase() -> float:
        nonlocal streams
        streams += 1
        batch: int = streams // options.batch % batches
        return interval_s * batch / batches

    def connected() -> Any:
        return SteadyAnswers(told, interval_s, phase)

    server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval-ms", type=float, required=True, help="between two tokens of a stream")
    parser.add_argument("--batch", type=int, required=True, help="streams whose tokens have the same moments")
    parser.add_argument("--streams", type=int, required=True, help="streams at once, over which moments are spread")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
