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
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.processes.children import exit_status
from benchmarks.processes.split_system import SplitSystem, split_system
from benchmarks.processes.usable import bearer
from benchmarks.send_at import send_at
from contracts.errors import BatonError
from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from launcher.options import DEMO_MODEL
from launcher.stages import StageDisplay

LINGER_0_S = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
CONNECT_TIMEOUT_S = 30.0
WARM_UP_CLIENTS = 100  # before anything is counted, so that all connections to Redis are open
WATCH_AT_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # behind the last client
MAX_TOKENS = 1200  # of each whole answer
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": MAX_TOKENS}
LONG: dict[str, Any] = {"max_tokens": MAX_TOKENS, "ignore_eos": True}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Once", **LONG}),
    ("/v1/completions", {"prompt": ["One", "Two", "Three"], **LONG}),
    ("/v1/chat/completions", {**CHAT, **LONG, "n": 2}),
    ("/v1/messages", CHAT),
    ("/v1/responses", {"input": "Tell a story.", "max_output_tokens": MAX_TOKENS}),
]


async def client(system: SplitSystem, key: str, options: argparse.Namespace, number: int) -> str:
    """Sends a request and goes away after a random time, mostly short: most faults are in the first milliseconds."""
    chance, loop, address = random.Random(number), asyncio.get_running_loop(), urlsplit(system.url)
    path, asked = chance.choice(REQUESTS)
    body = json.dumps({**asked, "model": "baton-demo", "stream": chance.random() < 0.5}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {key}"
    resets = chance.random() < options.resets
    with socket.socket() as connection:
        connection.setblocking(False)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.sock_connect(connection, (address.hostname, address.port))
            await loop.sock_sendall(connection, f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await asyncio.sleep(options.seconds * chance.random() ** 4)
        if resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0_S)
    return "reset" if resets else "closed"


async def crowd(system: SplitSystem, key: str, options: argparse.Namespace, count: int, rate: float) -> Counter[str]:
    times = [number / rate for number in range(count)]
    clients = [partial(client, system, key, options, number) for number in range(count)]
    return Counter(await asyncio.gather(*await send_at(times, clients, time.perf_counter())))


def left(system: SplitSystem, key: str) -> dict[str, int]:
    load = httpx.get(f"{system.url}/load", headers=bearer(key), timeout=CONNECT_TIMEOUT_S).json()
    leases: list[bytes] = system.store.keys("baton:rates:*:leases")  # type: ignore[assignment]
    return {
        "answers": int(load["server_load"]),
        "blocks": sum(record.load.blocks_used for record in system.records().values()),
        "leases": sum(int(system.store.zcard(name)) for name in leases),
        "descriptors": len(os.listdir(f"/proc/{system.processes['gateway'].pid}/fd")),
    }


def experiment(options: argparse.Namespace, stages: StageDisplay) -> None:
    """Prints what is left. Raises `BatonError` if anything is, at last."""
    with tempfile.TemporaryDirectory(prefix="baton-resets-") as folder:
        file, key = (
            Path(folder) / "keys.json",
            make_key("one", KeyOptions(concurrency=1000, operator=True), time.time()),
        )
        change_keys(file, lambda keys: [*keys, key.record], create=True)
        with split_system(DEMO_MODEL, Path(folder), gateway=("--api-keys", str(file)), key=key.text) as system:
            asyncio.run(crowd(system, key.text, options, WARM_UP_CLIENTS, 10 * options.rate))
            time.sleep(WATCH_AT_S[-1])
            before = left(system, key.text)["descriptors"]
            gone = asyncio.run(crowd(system, key.text, options, options.clients, options.rate))
            over = time.monotonic()
            found: dict[str, int] = {}
            print(f"clients that have gone: {dict(gone)}; descriptors before: {before}")
            for at in WATCH_AT_S:
                time.sleep(max(0.0, over + at - time.monotonic()))
                found = left(system, key.text)
                found["descriptors"] = max(0, found["descriptors"] - before)
                print(f"{time.monotonic() - over:4.1f} s after the last: {found}", flush=True)
            if any(found.values()):
                raise BatonError("the clients have left something behind")


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.stress.resets", description=__doc__, formatter_class=form)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--resets", type=float, default=0.5, help="share of the clients that reset their connection")
    parser.add_argument("--rate", type=float, default=25.0, help="clients that come each second")
    parser.add_argument("--seconds", type=float, default=0.6, help="longest time that a client stays")
    return exit_status(partial(experiment, parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
