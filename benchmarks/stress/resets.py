"""Ends clients at random moments of their requests, and counts what they leave behind in a split system.

    python -m benchmarks.stress.resets [--clients 1000] [--resets 0.5] [--rate 25] [--seconds 0.6]

Some end their connection by a reset (SO_LINGER of 0 s), others by closing it. They use all APIs, streaming and not, ask
for long answers, and share a key with a bound on requests in progress. Then answers in progress, KV blocks in use, the
key's leases and the gateway's descriptors are counted. A second after the last client nothing should be left; a worker
reports its blocks with its heartbeat, so they may be late.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.processes.children import exit_status
from benchmarks.processes.split_system import SplitSystem, split_system
from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from launcher.options import DEMO_MODEL
from launcher.stages import StageDisplay

LINGER_0_S = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
ANSWER_TOKENS = 1200  # of each whole answer
CONNECT_SECONDS = 30.0
WARM_UP = 100  # clients that come before anything is counted, so that all connections to Redis are open
WATCH_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0)
CHAT_BODY = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": ANSWER_TOKENS}
REQUEST_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Once", "max_tokens": ANSWER_TOKENS, "ignore_eos": True}),
    ("/v1/completions", {"prompt": ["One", "Two", "Three"], "max_tokens": ANSWER_TOKENS, "ignore_eos": True}),
    ("/v1/chat/completions", {**CHAT_BODY, "n": 2, "ignore_eos": True}),
    ("/v1/messages", CHAT_BODY),
    ("/v1/responses", {"input": "Tell a story.", "max_output_tokens": ANSWER_TOKENS}),
]


class Clients:
    """Clients that go away after at most `moments` s."""

    def __init__(self, url: str, key: str, model: str, moments: float, resets: float) -> None:
        self._address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
        self._key, self._model, self._moments, self._resets = key, model, moments, resets
        self.ended: Counter[str] = Counter()

    async def run(self, count: int, rate: float) -> None:
        async def one(number: int) -> None:
            await asyncio.sleep(number / rate)
            await self._one(random.Random(number))

        await asyncio.gather(*(one(number) for number in range(count)))

    async def _one(self, chance: random.Random) -> None:
        path, asked = chance.choice(REQUEST_BODIES)
        body = json.dumps({**asked, "model": self._model, "stream": chance.random() < 0.5}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {self._key}"
        loop, resets = asyncio.get_running_loop(), chance.random() < self._resets
        with socket.socket() as connection:
            connection.setblocking(False)
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.sock_connect(connection, self._address)
                await loop.sock_sendall(connection, f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            # Mostly short stays: most faults are in the first milliseconds.
            await asyncio.sleep(self._moments * chance.random() ** 4)
            if resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0_S)
        self.ended["reset" if resets else "closed"] += 1


def left(system: SplitSystem, key: str, before: int) -> dict[str, int]:
    asked = {"authorization": f"Bearer {key}"}
    leases: list[bytes] = system.store.keys("baton:rates:*:leases")  # type: ignore[assignment]
    return {
        "answers": int(httpx.get(f"{system.url}/load", headers=asked, timeout=CONNECT_SECONDS).json()["server_load"]),
        "blocks": sum(record.load.blocks_used for record in system.records().values()),
        "leases": sum(int(system.store.zcard(name)) for name in leases),
        "descriptors": max(0, descriptors(system) - before),
    }


def descriptors(system: SplitSystem) -> int:
    return len(os.listdir(f"/proc/{system.processes['gateway'].pid}/fd"))


def experiment(options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="baton-resets-") as folder:
        file, key = (
            Path(folder) / "keys.json",
            make_key("one", KeyOptions(concurrency=1000, operator=True), time.time()),
        )
        change_keys(file, lambda keys: [*keys, key.record], create=True)
        with split_system(DEMO_MODEL, Path(folder), gateway=("--api-keys", str(file)), key=key.text) as system:
            asked = {"authorization": f"Bearer {key.text}"}
            model = httpx.get(f"{system.url}/v1/models", headers=asked).json()["data"][0]["id"]
            clients = Clients(system.url, key.text, model, options.seconds, options.resets)
            asyncio.run(clients.run(WARM_UP, 10 * options.rate))
            time.sleep(WATCH_SECONDS[-1])
            before = descriptors(system)
            asyncio.run(clients.run(options.clients, options.rate))
            over = time.monotonic()
            print(f"clients that have gone: {dict(clients.ended)}; descriptors before: {before}")
            found: dict[str, int] = {}
            for seconds in WATCH_SECONDS:
                time.sleep(max(0.0, over + seconds - time.monotonic()))
                found = left(system, key.text, before)
                print(f"{time.monotonic() - over:4.1f} s after the last: {found}", flush=True)
            return not any(found.values())


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.stress.resets", description=__doc__, formatter_class=form)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--resets", type=float, default=0.5, help="share of the clients that reset their connection")
    parser.add_argument("--rate", type=float, default=25.0, help="clients that come each second")
    parser.add_argument("--seconds", type=float, default=0.6, help="longest time that a client stays")
    options = parser.parse_args()
    clean: list[bool] = []

    def run(stages: StageDisplay) -> None:
        clean.append(experiment(options))

    return exit_status(run) or (0 if all(clean) else 1)


if __name__ == "__main__":
    sys.exit(main())
