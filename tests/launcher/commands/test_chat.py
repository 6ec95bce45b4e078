"""`baton chat` against a small server that speaks the gateway's language, over a pipe and over a terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from contracts.slo import Timings
from infra.cli import parse
from launcher.__main__ import main
from launcher.commands.chat import SMALLEST, timings_line
from launcher.options import ROOT, UpConfig
from tests.waiting import DEADLINE_S, wait_until

ANSWER = ["Once ", "upon ", "a ", "time ", "🦊"]


class Gateway(ThreadingHTTPServer):
    """Answers every chat with `ANSWER`; `stall` holds it after the second piece until the client goes away."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.events: list[str] | None = None
        self.stall = threading.Event()
        self.gone = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "demo"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        if body["max_tokens"] == 13:
            self.reply(400, {"error": {"message": "max_tokens: 13: is unlucky", "type": "invalid_request_error"}})
            return
        self.send_response(200)
        self.end_headers()
        pieces = [json.dumps({"choices": [{"delta": {"content": piece}}]}) for piece in ANSWER]
        usage = json.dumps({"choices": [], "usage": {"completion_tokens": 9}})
        for number, event in enumerate(self.server.events or [*pieces, usage, "[DONE]"]):
            if number == 2 and self.server.stall.is_set():
                self.rfile.read(1)  # returns when the client closes its end
                self.server.gone.set()
                return
            self.wfile.write(f": a comment\n\ndata: {event}\n\n".encode())
            self.wfile.flush()

    def reply(self, status: int, body: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def chat(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "chat", *arguments]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True)


def test_one_message_per_line_without_a_terminal(gateway: Gateway) -> None:
    result = chat("hello\n\nand then?\n/new\nagain\n/quit\nnever\n", "--url", f"{gateway.url}/v1")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["".join(ANSWER)] * 3
    sent = [[(message["role"], message["content"]) for message in body["messages"]] for body in gateway.requests]
    first = [("user", "hello")]
    assert sent == [first, [*first, ("assistant", "".join(ANSWER)), ("user", "and then?")], [("user", "again")]]
    assert all(body["model"] == "demo" and body["stream"] for body in gateway.requests)


def test_an_error_is_one_sentence(gateway: Gateway) -> None:
    result = chat("hello\n", "--url", gateway.url, "--max-tokens", "13")
    assert (result.returncode, result.stderr) == (1, "error: max_tokens: 13: is unlucky\n")


def test_a_stream_that_fails_says_so(gateway: Gateway) -> None:
    gateway.events = [json.dumps({"error": {"message": "the worker died"}})]
    result = chat("hello\n", "--url", gateway.url)
    assert (result.returncode, result.stderr) == (1, "error: the worker died\n")


def test_without_an_instance_it_says_how_to_start_one() -> None:
    result = chat("hello\n")
    assert result.returncode == 1
    assert result.stderr == "error: no instance is running; start one with ./baton up, or name one with --url\n"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://a", "error: --url: 'ftp://a': expected a URL such as "),
        ("127.0.0.1:1", "error: http://127.0.0.1:1 cannot be reached: "),
    ],
)
def test_an_endpoint_that_is_not_there_is_named(url: str, sentence: str) -> None:
    result = chat("hello\n", "--url", url)
    assert result.returncode == 1
    assert result.stderr.startswith(sentence)


def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves(gateway: Gateway) -> None:
    gateway.stall.set()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "launcher", "chat", "--url", gateway.url])
    shown = b""

    def shows(text: bytes) -> bool:
        nonlocal shown
        if text not in shown:
            shown += os.read(terminal, 4096)  # a terminal without news is cut off by the test's time-out
        return text in shown

    try:
        wait_until(lambda: shows(b"> "), "the prompt")
        os.write(terminal, b"hello\n")
        wait_until(lambda: shows(b"upon"), "the first pieces")
        os.write(terminal, b"\x03")
        assert gateway.gone.wait(DEADLINE_S), "the request goes on"
        wait_until(lambda: shows(b"TTFT"), "the timings")
        gateway.stall.clear()
        os.write(terminal, b"again\n")
        wait_until(lambda: shows("🦊".encode()), "the second answer")
        wait_until(lambda: shows(b"9 tokens"), "the timings")
        os.write(terminal, b"\x04")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
    assert [message["content"] for message in gateway.requests[1]["messages"]] == ["hello", "Once upon ", "again"]


def test_alone_starts_one_worker_and_no_dashboard_and_says_if_it_cannot(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    up = parse(UpConfig, SMALLEST, "baton up")
    assert (up.prefill, up.decode, up.dashboard_port) == (0, 1, 0)
    assert main(["chat", "--alone", str(tmp_path / "no-model")]) == 1
    first, last = capfd.readouterr().err.splitlines()
    assert (
        first.startswith(f"error: --model: '{tmp_path / 'no-model'}': ") and last == "error: the instance did not start"
    )


def test_timings_in_words() -> None:
    assert timings_line(Timings(41.2, 41.2 + 86 * 12.34, 87)) == "TTFT 41 ms · TPOT 12.3 ms · 87 tokens"
    assert timings_line(Timings(41.2, 41.2, 1)) == "TTFT 41 ms · 1 token"
