"""Shows how a gateway fares under more tokens than it can take: `python -m benchmarks.stress.flood`.

A worker whose engine only makes tokens up gives every sequence one each step, as a large GPU would. While the gateway
is behind, its event loop should still serve everybody else (`/health` answers in milliseconds), pings should leave
every half second (else the worker takes it for dead), and the worker should put many tokens of a sequence into one
message, so that the backlog is in its ledger and not in queues.
"""

import argparse
import sys
import threading
import time

import httpx
import msgspec

from benchmarks.front.system import HOST, Shape, front, wait
from benchmarks.processes.children import child, exit_status
from benchmarks.processes.python_path import ROOT
from benchmarks.stress.flood_worker import Sent
from infra.network.listening import http_url
from launcher.host.process import answers
from launcher.stages import StageDisplay

END_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 600.0
ASK_INTERVAL_S = 0.01  # s between two questions to /health


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress.flood", description=__doc__)
    parser.add_argument("--sequences", type=int, default=256, help="that get tokens at once")
    parser.add_argument("--tokens", type=int, default=1000, help="of each sequence")
    parser.add_argument("--steps", type=float, default=200.0, help="a second")
    options = parser.parse_args()
    return exit_status(lambda stages: run(options.sequences, options.tokens, options.steps, stages))


def run(sequences: int, tokens: int, steps: float, stages: StageDisplay) -> None:
    """Starts Redis, a gateway and the flooding worker, and asks for all answers at once."""
    stages.show("flood", "starting")
    with front(ROOT, Shape(workers=0)) as system:
        ready, base = system.directory / "ready", http_url(HOST, system.port)
        command = [sys.executable, "-m", "benchmarks.stress.flood_worker", *system.shared]
        command += ["--steps", str(steps), "--ready", str(ready)]
        with child(command, system.directory / "flood.log", piped=True) as flood:
            wait(ready.exists, "the worker")
            wait(lambda: answers(f"{base}/ready"), "the gateway")
            stages.show("flood", "running")
            began = time.monotonic()
            pauses, failures = ask_all(base, sequences, tokens)
            seconds = time.monotonic() - began
            deaths = (system.directory / "gateway-0.log").read_text().count(" is dead")
            flood.terminate()
            said, _ = flood.communicate(timeout=END_TIMEOUT_S)
        stages.settle()
        report(msgspec.json.decode(said, type=Sent), pauses, failures, deaths, seconds)


def ask_all(base: str, sequences: int, tokens: int) -> tuple[list[float], int]:
    """Asks for every answer at once; returns what `/health` took meanwhile, s, and how many answers failed."""
    per_request = 16
    counts: list[int] = []
    body = {"prompt": [300, 301], "max_tokens": tokens, "n": per_request, "ignore_eos": True, "temperature": 1}

    def one() -> None:
        answer = httpx.post(f"{base}/v1/completions", json=body, timeout=ANSWER_TIMEOUT_S)
        counts.append(answer.json()["usage"]["completion_tokens"] if answer.status_code == 200 else 0)

    clients = [threading.Thread(target=one) for _ in range(-(-sequences // per_request))]
    pauses: list[float] = []
    with httpx.Client(timeout=ANSWER_TIMEOUT_S) as client:
        for each in clients:
            each.start()
        while any(each.is_alive() for each in clients):
            before = time.monotonic()
            client.get(f"{base}/health")
            pauses.append(time.monotonic() - before)
            time.sleep(ASK_INTERVAL_S)
    return pauses, sum(count != per_request * tokens for count in counts) * per_request


def report(sent: Sent, pauses: list[float], failures: int, deaths: int, seconds: float) -> None:
    ordered = sorted(pauses)
    print(f"tokens made            {sent.made}, in {seconds:.1f} s; answers that failed: {failures}")
    print(f"messages of tokens     {sent.messages}, the longest {sent.longest} bytes")
    print(f"tokens in an entry     {sent.tokens / max(1, sent.entries):.2f}")
    print(f"/health, ms            median {ordered[len(ordered) // 2] * 1e3:.0f}, worst {ordered[-1] * 1e3:.0f}")
    print(f"longest without a ping {sent.pause * 1e3:.0f} ms; the worker was taken for dead {deaths} times")


if __name__ == "__main__":
    raise SystemExit(main())
