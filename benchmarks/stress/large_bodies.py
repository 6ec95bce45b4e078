"""Shows how long a gateway is busy with nothing but one large body: `python -m benchmarks.stress.large_bodies`.

Bodies of 4 MB that cannot be served are sent one after the other, and some that can. Meanwhile another client asks for
/health all the time, and its longest wait says for how long every stream stood still. The first row, without any body,
is what the machine itself does.
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.processes.children import exit_status
from benchmarks.processes.split_system import split_system
from launcher.options import DEMO_MODEL
from launcher.stages import StageDisplay

BODY_BYTES = 4_000_000  # bytes of a body
ANSWER_TIMEOUT_S = 300.0
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def bodies() -> Iterator[tuple[str, str, bytes]]:
    message = b'{"role": "user", "content": "a"}'
    words = ("Once upon a time there was a fox. " * (BODY_BYTES // 34)).encode()
    yield "a prompt of words", COMPLETION, b'{"prompt": "' + words + b'"}'
    yield "a prompt of one letter", COMPLETION, b'{"prompt": "' + b"z" * BODY_BYTES + b'"}'
    yield "a message", CHAT, b'{"messages": [{"role": "user", "content": "' + words + b'"}]}'
    yield "messages", CHAT, b'{"messages": [' + b",".join([message] * (BODY_BYTES // 33)) + b"]}"
    yield "prompts [[1],[1],...]", COMPLETION, b'{"prompt": [' + b",".join([b"[1]"] * (BODY_BYTES // 4)) + b"]}"
    yield "token ids", COMPLETION, b'{"prompt": [' + b",".join([b"1"] * (BODY_BYTES // 2)) + b"]}"
    yield "fields", CHAT, b"{" + b",".join(b'"k%d":1' % number for number in range(BODY_BYTES // 12)) + b"}"
    fitting = json.dumps({"prompt": "Once upon a time there was a fox. " * 150, "max_tokens": 4})
    yield "a prompt that fits", COMPLETION, fitting.encode()


def longest_wait(url: str, work: Callable[[], object]) -> float:
    """Returns the longest time that /health took while `work` was done, s."""
    parts, longest, done = urlsplit(url), 0.0, threading.Event()

    def ask() -> None:
        nonlocal longest
        client = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_TIMEOUT_S)
        while not done.is_set():
            began = time.perf_counter()
            client.request("GET", "/health")
            client.getresponse().read()
            longest = max(longest, time.perf_counter() - began)
            done.wait(0.002)
        client.close()

    probe = threading.Thread(target=ask)
    probe.start()
    try:
        work()
    finally:
        done.set()
        probe.join()
    return longest


def post(url: str, path: str, body: bytes) -> str:
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_TIMEOUT_S)
    try:
        client.request("POST", path, body, {"content-type": "application/json"})
        answer = client.getresponse()
        said = json.loads(answer.read())
        return f"{answer.status} {said.get('error', {}).get('code', '')}"
    except OSError as error:
        return type(error).__name__
    finally:
        client.close()


@contextmanager
def _gateway() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="baton-stress-") as directory,
        split_system(DEMO_MODEL, Path(directory)) as system,
    ):
        yield system.url


def main() -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.stress.large_bodies", description=__doc__).parse_args()

    def run(stages: StageDisplay) -> None:
        with _gateway() as url:
            print(f"{'body':24}{'answered after':>16}{'others stood still':>20}   answer")
            print(f"{'none':24}{'':>16}{longest_wait(url, lambda: time.sleep(2.0)) * 1e3:>17.0f} ms")
            for name, path, body in bodies():
                said: list[str] = []
                began = time.perf_counter()
                longest = longest_wait(url, lambda p=path, b=body, s=said: s.append(post(url, p, b)))  # type: ignore[misc]
                took = time.perf_counter() - began
                print(f"{name:24}{took * 1e3:>13.0f} ms{longest * 1e3:>17.0f} ms   {said[0]}")

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
