"""`baton up` with the real services on the demo model: it answers, survives a worker's death, and leaves nothing."""

import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from contracts.errors import GatewayError
from infra.completions_client import CompletionsClient
from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from infra.redis.registry import index_key
from launcher.instance.instances import running
from launcher.is_ready import is_ready
from launcher.options import DEMO_NAME, ROOT
from tests.certificates import make_certificate
from tests.waiting import DEADLINE_S, LONG_DEADLINE_S, alive, children, wait_until


class Up:
    def __init__(self, directory: Path, *arguments: str) -> None:
        self.output = directory / "output"
        command = [sys.executable, "-m", "launcher", "up", "--port", "0", *arguments]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text() or self.process.poll() is not None, f"{text!r}", LONG_DEADLINE_S)
        assert text in self.text(), self.text()

    def pids(self) -> list[int]:
        return children(self.process.pid)

    def pid_of(self, word: str) -> int:
        """The one process in whose command line this word is."""
        (pid,) = [pid for pid in self.pids() if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return pid

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def up(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    instance = Up(tmp_path, "--dashboard-port", "0", *getattr(request, "param", ()))
    try:
        instance.wait_for("Try it:")
        yield instance
    finally:
        instance.process.kill()
        instance.process.wait()


def paste(line: str) -> dict[str, object]:
    """Does what the printed curl line does."""
    curl, silent, url, header, content_type, data, body = shlex.split(line)
    assert (curl, silent, header, content_type, data) == ("curl", "-s", "-H", "Content-Type: application/json", "-d")
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=DEADLINE_S)
    try:
        connection.request("POST", parts.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == http.client.OK, response.read()
        answer: dict[str, object] = json.loads(response.read())
        return answer
    finally:
        connection.close()


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def curl_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("curl ")]


def curl_line(text: str) -> str:
    return curl_lines(text)[0]


def called(answer: dict[str, object]) -> tuple[str, object]:
    match answer:
        case {"choices": [{"message": {"tool_calls": [{"function": {"name": str(name), "arguments": str(text)}}]}}]}:
            return name, json.loads(text)
    raise AssertionError(answer)


def content(answer: dict[str, object]) -> str:
    match answer:
        case {"choices": [{"message": {"content": str(text)}}]}:
            return text
    raise AssertionError(answer)


def lose_redis_while_it_answers(up: Up, url: str, runs: Path) -> None:
    """Kills Redis in the middle of a stream, which goes on to its last token, and waits until all are back."""
    body = {"model": DEMO_NAME, "prompt": "Once upon a time", "max_tokens": 600, "ignore_eos": True}
    stream = CompletionsClient(url).stream("/v1/completions", body)
    next(stream)
    os.kill(up.pid_of("unixsocket:"), signal.SIGKILL)
    assert [chunk.tokens for chunk in stream if chunk.tokens is not None][-1] == 600
    up.wait_for("redis died (killed by SIGKILL")
    up.wait_for("redis is ready again")
    (path,) = runs.glob("baton-run-*/redis.sock")
    with redis.Redis(unix_socket_path=str(path)) as store:
        wait_until(lambda: store.zcard(index_key("worker")) == 2, "the workers' records")
        wait_until(lambda: store.zcard(index_key("gateway")) == 1, "the gateway's record")
    wait_until(lambda: is_ready(f"{url}/ready"), "the gateway's finding them")


def test_answers_revives_services_and_leaves_nothing(up: Up, own_directories: Path) -> None:
    chat, tool = curl_lines(up.text())
    assert content(paste(chat)).strip()
    assert called(paste(tool)) == ("get_weather", {"city": "Paris"})
    (instance,) = running()
    assert instance.pid == up.process.pid

    said = subprocess.run(
        [sys.executable, "-m", "launcher", "chat"], cwd=ROOT, input="Hello!\n", capture_output=True, text=True
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.strip()

    shown = subprocess.run([sys.executable, "-m", "launcher", "status"], cwd=ROOT, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "") and shown.stdout.startswith("ready, since ")
    assert f"  endpoint   {instance.url}/v1\n" in shown.stdout and f"  log        {instance.log}\n" in shown.stdout
    assert re.search(rf"^decode-0 +ready  {up.pid_of('decode_service')} +0 +cpu +0 +0 ", shown.stdout, re.MULTILINE)

    again = subprocess.run([sys.executable, "-m", "launcher", "restart", "gateway"], cwd=ROOT, capture_output=True)
    assert (again.returncode, again.stderr) == (0, b"")
    up.wait_for("gateway ended, as it was told to; it is started again at once")
    assert [service.restarts for service in running()[0].services if service.name == "gateway"] == [1]

    os.kill(up.pid_of("decode_service"), signal.SIGKILL)
    up.wait_for("decode-0 died (killed by SIGKILL")
    up.wait_for("decode-0 is ready again")
    wait_until(lambda: is_ready(f"{instance.url}/ready"), "the gateway's finding it")
    assert content(paste(curl_line(up.text()))).strip()

    lose_redis_while_it_answers(up, instance.url, own_directories)
    assert content(paste(curl_line(up.text()))).strip()

    pids = up.pids()
    assert len(pids) >= 4
    assert subprocess.run([sys.executable, "-m", "launcher", "down"], cwd=ROOT, capture_output=True).returncode == 0
    assert up.process.wait(DEADLINE_S) == 0
    assert not [pid for pid in pids if alive(pid)]
    assert list(own_directories.iterdir()) == []
    assert running() == []
    log = re.search(r"^  log +(\S+)$", up.text(), re.MULTILINE)
    assert log is not None
    assert "decode-0  | " in Path(log[1]).read_text()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[Up, str, Path]]:
    """An instance without prefill workers that needs keys and speaks HTTPS; a key for it, and its certificate."""
    cert, its_key = make_certificate(tmp_path / "tls")
    made = make_key("app", KeyOptions(requests_per_minute=2), time.time())
    change_keys(tmp_path / "keys.json", lambda keys: [made.record], create=True)
    options = ("--api-keys", str(tmp_path / "keys.json"), "--tls-cert", str(cert), "--tls-key", str(its_key))
    instance = Up(tmp_path, "--dashboard-port", "0", "--prefill", "0", "--idle-unload", "0.1", *options)
    try:
        instance.wait_for("Try it:")
        yield instance, made.text, cert
    finally:
        instance.process.kill()
        instance.process.wait()


def test_keys_https_an_idle_model_and_a_killed_launcher_that_leaves_no_process(secured: tuple[Up, str, Path]) -> None:
    up, key, cert = secured
    commands = b" ".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in up.pids())
    assert b"decode_service" in commands and b"prefill_service" not in commands
    (instance,) = running()
    line = curl_line(up.text())
    assert instance.url.startswith("https://") and f"--cacert {cert}" in line
    assert '-H "Authorization: Bearer $BATON_API_KEY"' in line and f'"model": "{DEMO_NAME}"' in line
    said = subprocess.run(
        [sys.executable, "-m", "launcher", "chat"], cwd=ROOT, input="Hello!\n", capture_output=True, text=True
    )
    assert (said.returncode, said.stderr) == (0, "") and said.stdout.strip(), "it has the instance's own key"
    assert CompletionsClient(instance.url, key=key, cert=str(cert)).model() == DEMO_NAME
    with pytest.raises(GatewayError, match="needs an API key"):
        CompletionsClient(instance.url, cert=str(cert)).model()
    with pytest.raises(GatewayError, match="cannot be reached"):
        CompletionsClient(instance.url, key=key).model()
    up.wait_for("the model is unloaded after 0.1 idle minutes")
    wait_until(lambda: not [pid for pid in up.pids() if b"decode_service" in command_line(pid)], "the worker's end")
    (worker,) = [service for service in running()[0].services if service.name == "decode-0"]
    assert (worker.stage, worker.pid) == ("unloaded", 0)
    body = {"model": DEMO_NAME, "prompt": "Once upon a time", "max_tokens": 8}
    answer = CompletionsClient(instance.url, key=key, cert=str(cert)).stream("/v1/completions", body)
    assert "".join(chunk.text for chunk in answer), "the next request waits for the model"
    up.wait_for("decode-0 is ready again")
    pids = up.pids()
    up.process.kill()
    up.process.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids), "the children's end")
    assert running() == []


def test_sigterm_while_it_starts_leaves_nothing(tmp_path: Path, own_directories: Path) -> None:
    up = Up(tmp_path, "--dashboard-port", "0")
    wait_until(lambda: len(up.pids()) >= 4, "the children's start")
    pids = up.pids()
    assert up.end(signal.SIGTERM) == 0
    assert not [pid for pid in pids if alive(pid)]
    assert list(own_directories.iterdir()) == []


def test_a_worker_that_cannot_start_stops_everything(tmp_path: Path, own_directories: Path) -> None:
    up = Up(tmp_path, "--dashboard-port", "0", "--prefill", "0", "--kv-memory", "1K")
    assert up.process.wait(LONG_DEADLINE_S) == 1
    (error,) = [line for line in up.text().splitlines() if line.startswith("error: ")]
    assert re.match(r"error: decode-0 did not start: .+ \(log: .+\)$", error)
    assert list(own_directories.iterdir()) == []
