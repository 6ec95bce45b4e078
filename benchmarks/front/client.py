"""Asks for streamed answers, each on its own connection, and notes when tokens arrive, with little work of its own.

A process of its own. It prints `begun` once every stream has had a token and `ended` when all have ended, then writes
what it saw. Nothing is parsed: every token's text is one word that occurs nowhere else, and is counted.
"""

import argparse
import asyncio
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import uvloop

_ID = re.compile(rb"x-request-id: (\S+)")


class Seen(msgspec.Struct):
    """One stream as its client saw it."""

    request: str = ""
    asked: float = 0.0  # monotonic s
    times: list[float] = []  # monotonic s, of each piece that brought tokens
    tokens: list[int] = []  # received up to and with that piece
    events: int = 0
    whole: bool = False  # it ended regularly


class Stream(asyncio.Protocol):
    """Reads one streamed answer."""

    def __init__(self, request: bytes, word: bytes, begun: asyncio.Semaphore, ended: asyncio.Semaphore) -> None:
        self.seen = Seen(times=[], tokens=[])
        self._request, self._word = request, word
        self._begun, self._ended = begun, ended
        self._rest = b""  # of the last piece, too short for a word
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class
        self.seen.asked = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self.seen.request and (found := _ID.search(data)):
            self.seen.request = found[1].decode()
        text = self._rest + data
        count = text.count(self._word)
        self._rest = text[-len(self._word) + 1 :]
        self.seen.events += data.count(b"data: ")
        if count:
            if not self._count:
                self._begun.release()
            self._count += count
            self.seen.times.append(now)
            self.seen.tokens.append(self._count)
        if data.endswith(b"0\r\n\r\n"):
            self.seen.whole = True
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._begun.release()
        self._ended.release()


async def ask(options: argparse.Namespace) -> list[Seen]:
    loop = asyncio.get_running_loop()
    body = options.body.read_bytes()
    head = f"POST {options.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    begun, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)
    streams = []
    for number in range(options.streams):
        if number >= options.together:
            await ended.acquire()
        stream = Stream(request, options.word.encode(), begun, ended)
        await loop.create_connection(partial(_same, stream), options.host, options.port)
        streams.append(stream)
    for _ in streams:
        await begun.acquire()
    print("begun", flush=True)
    for _ in range(min(options.together, options.streams)):
        await ended.acquire()
    print("ended", flush=True)
    return [stream.seen for stream in streams]


def _same(stream: Stream) -> Stream:
    return stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--body", type=Path, required=True, help="file of JSON")
    parser.add_argument("--word", required=True, help="the text of every token")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--together", type=int, required=True, help="streams that are open at once")
    parser.add_argument("--seen", type=Path, required=True, help="file for what came when")
    options = parser.parse_args()
    options.seen.write_bytes(msgspec.msgpack.encode(uvloop.run(ask(options))))
    sys.exit(0)


if __name__ == "__main__":
    main()
