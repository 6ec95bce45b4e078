"""Clients that reset or close their connection at any moment leave nothing: no request, lease, task or descriptor."""

import asyncio
import json
import os
import socket
import struct
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.gateway.keys.conftest import KeyMaker, key_file, make
from tests.gateway.running import Running, Serve, until

__all__ = ["key_file", "make"]

TURNS_OF_THE_LOOP = 60  # turns of the event loop behind the request's last byte: each is the moment of one reset
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
CHAT = {"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 100}
ASKED = [
    ("/v1/completions", {"prompt": "Hi!", "max_tokens": 100}),
    ("/v1/completions", {"prompt": ["One", "Two", "Three"], "max_tokens": 100, "stream": True}),
    ("/v1/chat/completions", {**CHAT, "n": 2, "stream": True}),
    ("/v1/messages", {**CHAT, "model": "tiny"}),
    ("/v1/responses", {"input": "Hi!", "max_output_tokens": 100, "stream": True}),
]


async def left(running: Running, path: str, body: object, key: str, turns: int, reset: bool) -> None:
    """Asks, and is gone so many turns of the event loop later."""
    loop, address, written = asyncio.get_running_loop(), urlsplit(running.url), json.dumps(body).encode()
    with socket.socket() as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, (address.hostname, address.port))
        fields = f"host: x\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n"
        head = f"POST {path} HTTP/1.1\r\n{fields}content-length: {len(written)}\r\n\r\n"
        await loop.sock_sendall(connection, head.encode() + written)
        for _ in range(turns):
            await asyncio.sleep(0)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("limited", [True, False])
async def test_a_client_that_goes_at_any_moment_leaves_nothing(
    serve: Serve, key_file: Path, make: KeyMaker, limited: bool
) -> None:
    key = make("one", concurrency=4 * TURNS_OF_THE_LOOP) if limited else make("one")
    running = await serve("prefill", api_keys=(str(key_file),))
    await running.add("decode", stalls_at=3)  # an answer that its client has left would never end
    gateway, own = running.gateway, {"authorization": f"Bearer {key}"}
    body = {"prompt": "Hi!", "max_tokens": 1}
    assert (await running.client.post("/v1/completions", json=body, headers=own)).status_code == 200
    await running.idle()
    tasks, files = len(asyncio.all_tasks()), descriptors()
    for turns in range(TURNS_OF_THE_LOOP):
        path, asked = ASKED[turns % len(ASKED)]
        await left(running, path, asked, key, turns, reset=turns % 3 != 2)
    await until(lambda: not len(gateway.requests), "no request in progress", 5)
    await running.idle()
    await until(lambda: not gateway.limiter._open, "no lease", 5)
    # Redis's pool keeps up to 16 connections: only what grows with the number of resets is a leak.
    await until(lambda: len(asyncio.all_tasks()) <= tasks + 3, "no task", 5)
    assert descriptors() <= files + 16
