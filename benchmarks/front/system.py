"""Starts Redis, simulated workers and gateways of one checkout of the project."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import redis

from benchmarks.front.client import Seen
from benchmarks.processes.children import child, end, last_line
from benchmarks.processes.usable import usable_workers, wait_until
from contracts.errors import BatonError
from infra.network.listening import http_url
from infra.network.sealing import new_secret
from infra.redis.clients import connect_blocking
from launcher.checking.preflight import check_port
from launcher.host.processes import environment
from launcher.host.redis_server import redis_service
from launcher.options import DEMO_MODEL

HERE = Path(__file__).parent
HOST = "127.0.0.1"
SIMULATED_WORKER_FILE = Path("testing", "simulated_worker.py")
START_SECONDS = 120.0
MODEL_NAME = "demo"
WORD, TOKEN = " garden", 821  # a token of the demonstration model whose text nothing else in an answer has
CHAT: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}]}
APIS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**CHAT, "ignore_eos": True}),
    "completions": ("/v1/completions", {"prompt": "Hello!", "ignore_eos": True}),
    "responses": ("/v1/responses", {"input": "Hello!", "store": False}),
    "anthropic": ("/v1/messages", CHAT),
}
"""Path of each API, and a body without `stream` and length."""


@dataclass(frozen=True)
class Shape:
    """The workers and gateways of a measurement."""

    workers: int = 1
    gateways: int = 1
    pause: float = 0.1  # s between a worker's steps; 0: it answers at once
    gateway_words: tuple[str, ...] = ()  # further options of the gateways


@dataclass(frozen=True)
class Front:
    """A running system."""

    port: int
    gateways: Sequence[subprocess.Popen[str]]
    directory: Path
    stop_workers: Callable[[], dict[str, list[float]]]
    """Returns the time at which each token was made, monotonic s, by request."""

    def processor_seconds(self) -> float:
        return sum(thread_seconds(one.pid) for one in self.gateways)

    @contextmanager
    def client(self, api: str, streams: int, tokens: int, together: int = 0) -> Iterator[Callable[[], list[Seen]]]:
        """Starts a client, and yields a function that waits for its end and returns the streams.

        `together`: streams at once; 0: all.
        """
        path, usual = APIS[api]
        limit = "max_output_tokens" if api == "responses" else "max_tokens"
        asked = {**usual, "model": MODEL_NAME, "stream": True, limit: tokens, "temperature": 0}
        body = self.directory / "body"
        body.write_text(json.dumps(asked))
        seen = self.directory / "seen"
        command = [sys.executable, str(HERE / "client.py"), "--port", str(self.port), "--path", path]
        command += ["--body", str(body)]
        command += ["--streams", str(streams), "--together", str(together or streams)]
        command += ["--word", WORD, "--seen", str(seen)]
        errors = self.directory / "client.log"

        def saw() -> list[Seen]:
            said(process, "ended", errors)
            if process.wait(START_SECONDS):
                raise BatonError(f"the client failed: {last_line(errors)}")
            return msgspec.msgpack.decode(seen.read_bytes(), type=list[Seen])

        with child(command, errors, piped=True) as process:
            said(process, "begun", errors)
            yield saw


Begin = Callable[[Shape], AbstractContextManager[Front]]
"""Starts a system of that shape, which ends with its context."""


def said(process: subprocess.Popen[str], word: str, errors: Path) -> None:
    assert process.stdout is not None
    if process.stdout.readline().strip() != word:
        raise BatonError(f"a process did not come to say {word!r}: {last_line(errors)}")


@contextmanager
def front(checkout: Path, shape: Shape) -> Iterator[Front]:
    """Starts a system with the modules of `checkout`, and ends it on exit. Raises `BatonError` if it does not start."""
    with tempfile.TemporaryDirectory(prefix="baton-front-") as name, ExitStack() as stack:
        directory = Path(name)
        # Without a safe path, `python -m` would find the modules of the directory that we were started in.
        settings = environment(os.environ, checkout, directory) | {"PYTHONSAFEPATH": "1"}
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text(new_secret())
        server, url = redis_service(directory)
        stack.enter_context(child(server.command, directory / "redis.log", settings=settings))
        store = connect_blocking(url)
        stack.callback(store.close)
        wait_until(lambda: answers(store.ping), "Redis", directory / "redis.log")
        shared = ["--redis", url, "--secret-file", str(secret), "--model", str(DEMO_MODEL)]
        port = check_port("--port", HOST, 0)
        words = [sys.executable, "-m", "gateway", *shared, "--port", str(port), "--host", HOST]
        words += ["--max-requests", "100000", "--max-connections", "20000", "--served-model-name", MODEL_NAME]
        words += shape.gateway_words
        if shape.gateways > 1:
            words += ["--share-port", "front"]
        gateways = [
            stack.enter_context(child(words, directory / f"gateway-{number}.log", settings=settings))
            for number in range(shape.gateways)
        ]
        # A worker that imports the modules of that checkout.
        worker = checkout / SIMULATED_WORKER_FILE
        workers = []
        for number in range(shape.workers):
            phase = shape.pause * number / shape.workers
            command = [sys.executable, str(worker), *shared, "--token", str(TOKEN)]
            command += ["--pause", str(shape.pause), "--phase", str(phase), "--made", str(directory / f"made-{number}")]
            log = directory / f"worker-{number}.log"
            workers.append(stack.enter_context(child(command, log, settings=settings)))
        log = directory / "gateway-0.log"
        wait_until(lambda: usable(port, shape), f"{shape.workers} workers, as the gateway sees them", log)

        def stop_workers() -> dict[str, list[float]]:
            made: dict[str, list[float]] = {}
            for number, process in enumerate(workers):
                end(process)
                made |= msgspec.msgpack.decode((directory / f"made-{number}").read_bytes(), type=dict[str, list[float]])
            return made

        yield Front(port, gateways, directory, stop_workers)


def usable(port: int, shape: Shape) -> bool:
    """Returns whether all workers are usable to all gateways; a new connection may reach any of them."""
    url = http_url(HOST, port)
    return all(usable_workers(url) >= shape.workers for _ in range(8 * (shape.gateways - 1) + 1))


def thread_seconds(pid: int) -> float:
    """Returns the processor time of a process's threads so far, s, to the nanosecond (`schedstat` of proc(5))."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except redis.RedisError:
        return False
    return True
