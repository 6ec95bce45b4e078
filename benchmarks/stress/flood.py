"""Shows how a gateway fares under more tokens than it can take: `python -m benchmarks.stress.flood`.

A worker whose engine only makes tokens up gives every sequence one each step, as a large GPU would. While the gateway
is behind, its event loop should still serve everybody else (`/health` answers in milliseconds), pings should leave
every half second (else the worker takes it for dead), and the worker should put many tokens of a sequence into one
message, so that the backlog is in its ledger and not in queues.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec
import redis

from benchmarks.processes.children import child, exit_status
from benchmarks.processes.split_system import HOST, LOOK_SECONDS
from benchmarks.stress.flood_worker import Sent
from contracts.errors import BatonError
from infra.network.listening import http_url
from infra.network.sealing import new_secret
from infra.redis.clients import connect_blocking
from launcher.checking.preflight import check_port
from launcher.host.processes import environment
from launcher.host.redis_server import redis_service
from launcher.options import DEMO_MODEL, ROOT
from launcher.stages import StageDisplay

START_SECONDS = 60.0
ANSWER_SECONDS = 600.0
ASK_EVERY = 0.01  # s between two questions to /health


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress.flood", description=__doc__)
    parser.add_argument("--sequences", type=int, default=256, help="that get tokens at once")
    parser.add_argument("--tokens", type=int, default=1000, help="of each sequence")
    parser.add_argument("--steps", type=float, default=200.0, help="a second")
    options = parser.parse_args()
    return exit_status(lambda stages: run(options.sequences, options.tokens, options.steps, stages))


def run(sequences: int, tokens: int, steps: float, stages: StageDisplay) -> None:
    stages.show("flood", "starting")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        settings = environment(os.environ, ROOT, directory)
        secret, ready = directory / "secret", directory / "ready"
        secret.write_text(new_secret())
        server, url = redis_service(directory)
        stack.enter_context(child(server.command, directory / "redis.log", settings=settings))
        with connect_blocking(url) as store:
            wait(lambda: answers(store.ping), "Redis")
        shared = ["--redis", url, "--secret-file", str(secret), "--model", str(DEMO_MODEL)]
        port = check_port("--port", HOST, 0)
        gateway = [sys.executable, "-m", "gateway", *shared, "--port", str(port), "--host", HOST]
        stack.enter_context(child(gateway, directory / "gateway.log", settings=settings))
        flooding = [sys.executable, "-m", "benchmarks.stress.flood_worker", *shared]
        flooding += ["--steps", str(steps), "--ready", str(ready)]
        flood = subprocess.Popen(
            flooding, cwd=ROOT, env={**os.environ, **settings}, stdout=subprocess.PIPE, start_new_session=True
        )
        stack.callback(flood.kill)
        base = http_url(HOST, port)
        wait(ready.exists, "the worker")
        wait(lambda: answers(lambda: httpx.get(f"{base}/ready").raise_for_status()), "the gateway")
        stages.show("flood", "running")
        began = time.monotonic()
        pauses, failures = ask_all(base, sequences, tokens)
        seconds = time.monotonic() - began
        deaths = (directory / "gateway.log").read_text().count(" is dead")
        flood.terminate()
        said, _ = flood.communicate(timeout=START_SECONDS)
        stages.settle()
        report(msgspec.json.decode(said, type=Sent), pauses, failures, deaths, seconds)


def ask_all(base: str, sequences: int, tokens: int) -> tuple[list[float], int]:
    """Asks for every answer at once; returns what `/health` took meanwhile, s, and how many answers failed."""
    per_request = 16
    counts: list[int] = []
    body = {"prompt": [300, 301], "max_tokens": tokens, "n": per_request, "ignore_eos": True, "temperature": 1}

    def one() -> None:
        answer = httpx.post(f"{base}/v1/completions", json=body, timeout=ANSWER_SECONDS)
        counts.append(answer.json()["usage"]["completion_tokens"] if answer.status_code == 200 else 0)

    clients = [threading.Thread(target=one) for _ in range(-(-sequences // per_request))]
    pauses: list[float] = []
    with httpx.Client(timeout=ANSWER_SECONDS) as client:
        for each in clients:
            each.start()
        while any(each.is_alive() for each in clients):
            before = time.monotonic()
            client.get(f"{base}/health")
            pauses.append(time.monotonic() - before)
            time.sleep(ASK_EVERY)
    return pauses, sum(count != per_request * tokens for count in counts) * per_request


def report(sent: Sent, pauses: list[float], failures: int, deaths: int, seconds: float) -> None:
    ordered = sorted(pauses)
    print(f"tokens made            {sent.made}, in {seconds:.1f} s; answers that failed: {failures}")
    print(f"messages of tokens     {sent.messages}, the longest {sent.longest} bytes")
    print(f"tokens in an entry     {sent.tokens / max(1, sent.entries):.2f}")
    print(f"/health, ms            median {ordered[len(ordered) // 2] * 1e3:.0f}, worst {ordered[-1] * 1e3:.0f}")
    print(f"longest without a ping {sent.pause * 1e3:.0f} ms; the worker was taken for dead {deaths} times")


def answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except (redis.RedisError, httpx.HTTPError):
        return False
    return True


def wait(condition: Callable[[], bool], what: str) -> None:
    """Waits until a service is there. Raises `BatonError` if it never is."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise BatonError(f"{what} does not become ready")
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
