"""`python -m gateway` as a process: its start, its end, and the sentence where it cannot start."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from gateway.__main__ import serve
from gateway.service import Gateway
from gateway.text.tokenizer import ModelTokenizer
from infra.config.gateway import GatewayConfig
from infra.config.store import StoreConfig
from infra.network.listening import listen
from infra.process.status import StatusFile, read_status
from infra.redis.store import WAITING_STAGE
from tests.gateway.peer import Peer
from tests.gateway.running import until
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(model: Path, redis_url: str, secret_file: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(files: tuple[int, int] | None = None, **changed: str) -> "subprocess.Popen[str]":
        options = {"model": str(model), "redis": redis_url, "secret-file": str(secret_file), "port": "0"} | changed
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-m", "gateway", *words]
        few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, files) if files is not None else None
        started.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=few))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def ready(status: Path) -> str:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = json.loads(status.read_text()) if status.exists() else {}
        if found.get("stage") == "ready":
            return str(found["address"])
        time.sleep(0.02)
    raise AssertionError("the gateway does not start")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_start_and_end(start: Start, tmp_path: Path, number: int) -> None:
    status = tmp_path / "status"
    process = start(**{"status-file": str(status)})
    url = ready(status)
    assert not url.endswith(":0")
    assert httpx.get(f"{url}/health", verify=PLAIN).json()["stage"] == "waiting for workers"
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert "Traceback" not in said


async def test_a_start_that_loses_its_cancellation_ends_all_the_same(
    redis_url: str, model: Path, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries lose a cancellation now and then; a gateway that never ended would be killed."""
    lost = asyncio.Event()

    async def start(gateway: Gateway) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()

    monkeypatch.setattr(Gateway, "start", start)
    config = GatewayConfig(model=str(model), store=StoreConfig(redis=redis_url, secret_file=str(secret_file)))
    served = asyncio.create_task(serve(config, listen("127.0.0.1", 0), StatusFile("")))
    await until(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the server to take signals")
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(DEADLINE_S):
        await served
    assert lost.is_set()


async def test_sigterm_lets_an_open_stream_end_and_refuses_others(
    start: Start, tmp_path: Path, model: Path, redis_url: str, secret_file: Path
) -> None:
    status = tmp_path / "status"
    process = start(**{"status-file": str(status), "served-model-name": "m"})
    letter, end = 40, ModelTokenizer(model).stop_ids[0]
    secret = secret_file.read_bytes()
    peer = await Peer("decode", redis_url, secret, str(model), lambda *_: [*[letter] * 100, end], step=0.03).start()
    url = await asyncio.to_thread(ready, status)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=PLAIN) as client:
            while (await client.get("/ready")).status_code != 200:
                await asyncio.sleep(0.02)
            body = {"prompt": "a", "stream": True, "max_tokens": 200}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                process.send_signal(signal.SIGTERM)
                while (said := await client.get("/ready")).status_code == 200:
                    await asyncio.sleep(0.01)
                assert said.json()["stage"] == "shutting down"
                refused = await client.post("/v1/completions", json={"prompt": "a"})
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                rest = [line async for line in lines if line.startswith("data: ")]
        assert rest[-1] == "data: [DONE]" and not any('"error"' in line for line in rest)
        assert '"finish_reason":"stop"' in "".join(rest).replace(" ", "")
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0
    finally:
        await peer.die()


def test_an_open_connection_does_not_hold_the_end(start: Start, tmp_path: Path) -> None:
    status = tmp_path / "status"
    process = start(**{"status-file": str(status)})
    with httpx.Client(base_url=ready(status), verify=PLAIN) as client:
        client.get("/health")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def _fails(process: "subprocess.Popen[str]", *words: str) -> None:
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2, said
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in said, said
    assert all(word in errors[0] for word in words), said


def test_a_port_in_use(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        _fails(start(port=port), "--port", port, "another process")


def test_redis_that_is_away_is_waited_for(start: Start, tmp_path: Path) -> None:
    status = tmp_path / "status"
    process = start(**{"redis": f"unix://{tmp_path}/nobody", "status-file": str(status)})
    wait_until(lambda: (found := read_status(status)) and found.stage == WAITING_STAGE, "the gateway to wait")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0 and said.count("no answer from a Redis server") == 1, said


def test_redis_that_refuses_is_not(start: Start, redis_url: str) -> None:
    _fails(start(redis=redis_url.replace("unix://", "unix://stranger:wrong@")), "--redis", "invalid username-password")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("redis", "http://x"),
        ("port", "70000"),
        ("host", "no.such.host.invalid"),
        ("max-requests", "0"),
        ("nothing", "1"),
    ],
)
def test_a_bad_option(start: Start, option: str, value: str) -> None:
    _fails(start(**{option: value}), f"--{option}")


def test_a_missing_model(start: Start) -> None:
    _fails(start(model="/nowhere/at/all"), "--model", "/nowhere/at/all")


def test_neither_torch_nor_transformers_is_loaded(model: Path) -> None:
    """They cost seconds and hundreds of megabytes."""
    code = (
        "import sys; from pathlib import Path; import gateway.__main__;"
        "from gateway.text.chat import Chat; from gateway.text.tokenizer import ModelTokenizer;"
        f"t = ModelTokenizer(Path({str(model)!r})); t.template.render(Chat([dict(role='user', content='a')]));"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=DEADLINE_S
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_connections_are_as_many_as_descriptors_allow(start: Start, tmp_path: Path) -> None:
    """The soft limit of few is raised, and the hard one is bowed to."""
    status = tmp_path / "status"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    start(files=(48, hard), **{"status-file": str(status), "max-connections": "100"})
    url = ready(status)
    host, port = url.removeprefix("http://").rsplit(":", 1)
    idle = [socket.create_connection((host, int(port))) for _ in range(80)]
    assert httpx.get(f"{url}/health", verify=PLAIN).json()["stage"] == "waiting for workers"
    for one in idle:
        one.close()


def test_a_limit_of_descriptors_is_named(start: Start, tmp_path: Path) -> None:
    status = tmp_path / "status"
    process = start(files=(200, 200), **{"status-file": str(status), "max-connections": "5000"})
    url = ready(status)
    host, port = url.removeprefix("http://").rsplit(":", 1)
    idle = [socket.create_connection((host, int(port))) for _ in range(300)]
    assert httpx.get(f"{url}/health", verify=PLAIN).status_code == 503
    for one in idle:
        one.close()
    process.terminate()
    _, said = process.communicate(timeout=DEADLINE_S)
    assert "--max-connections: 5000" in said and "at most 150 connections" in said, said
