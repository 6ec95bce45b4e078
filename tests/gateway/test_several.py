"""Several gateways on one port, as processes: each answers for all, is drained alone, and is started again."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from gateway.text.tokenizer import ModelTokenizer
from infra.network.listening import listen
from tests.gateway.apart import peer_apart
from tests.plain_http import PLAIN
from tests.waiting import children

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 40.0
BODY = {"prompt": "a", "max_tokens": 5}
_COUNTED = re.compile(r'^baton:requests_ended_total\{gateway="(.*?)".*outcome="finished"\} (\S+)$', re.MULTILINE)


@pytest.fixture
async def peer(model: Path, redis_url: str, secret_file: Path) -> AsyncIterator[None]:
    """A worker whose answers take five steps; forty clients at once on the test's loop do not silence it."""
    end, secret = ModelTokenizer(model).stop_ids[0], secret_file.read_bytes()
    async with peer_apart("decode", redis_url, secret, model, lambda *_: [*[40] * 4, end]):
        yield


async def gets(url: str, path: str, there: Callable[[httpx.Response], bool]) -> httpx.Response:
    """Asks on new connections until an answer is as wanted."""
    end, said = time.monotonic() + SECONDS, "nothing"
    while time.monotonic() < end:
        try:
            async with httpx.AsyncClient(base_url=url, timeout=5, verify=PLAIN) as client:
                answer = await client.get(path)
            if there(answer):
                return answer
            said = answer.text[:400]
        except httpx.TransportError as error:
            said = repr(error)
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} did not become what was wanted: {said}")


def lives(count: int, without: str = "") -> Callable[[httpx.Response], bool]:
    """Tells of an answer of /stats whether it names so many gateways, and not this one."""

    def told(answer: httpx.Response) -> bool:
        epochs = [one["epoch"] for one in answer.json()["gateways"]] if answer.status_code == 200 else []
        return len(epochs) == count and without not in epochs

    return told


async def test_two_gateways_are_one_to_their_clients(
    peer: None, model: Path, redis_url: str, secret_file: Path, tmp_path: Path
) -> None:
    with listen("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
    options = {"model": model, "redis": redis_url, "secret-file": secret_file, "port": port, "gateways": 2}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--served-model-name", "m", "--status-file", str(tmp_path / "s")]
    command = [sys.executable, "-m", "gateway", *words]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        await gets(url, "/stats", lives(2))
        for _ in range(12):  # each on a new connection, which may be either one's
            await gets(url, "/ready", lambda answer: answer.status_code == 200)
        assert {json.loads((tmp_path / f"s.{number}").read_text())["stage"] for number in (0, 1)} == {"ready"}

        async def ask() -> int:
            async with httpx.AsyncClient(base_url=url, timeout=SECONDS, verify=PLAIN) as client:
                return (await client.post("/v1/completions", json=BODY)).status_code

        assert await asyncio.gather(*(ask() for _ in range(40))) == [200] * 40

        def all_counted(answer: httpx.Response) -> bool:
            counts = [float(count) for _, count in _COUNTED.findall(answer.text)]
            return len(counts) == 2 and sum(counts) == 40

        page = await gets(url, "/metrics", all_counted)
        assert page.text.count("# TYPE baton:requests_ended_total counter") == 1
        usable = re.findall(r"^baton:worker_usable\{.*$", page.text, re.MULTILINE)
        assert usable and len(set(usable)) == len(usable), "workers are told of once"

        os.kill(children(process.pid)[0], signal.SIGKILL)
        names = {name for name, _ in _COUNTED.findall(page.text)}
        new = await gets(url, "/stats", lambda answer: lives(2)(answer) and not names >= _epochs(answer))
        assert len(names & _epochs(new)) == 1, "the other one went on, and one was started again"

        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, SECONDS) == 0
    finally:
        process.kill()
        said = process.communicate(timeout=10)[1]
    assert "Traceback" not in said


def _epochs(answer: httpx.Response) -> set[str]:
    return {one["epoch"] for one in answer.json()["gateways"]}


async def test_a_gateway_that_cannot_start_ends_all(model: Path, redis_url: str, tmp_path: Path) -> None:
    words = ["--model", str(tmp_path / "none"), "--redis", redis_url, "--gateways", "2", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *words, cwd=ROOT, stderr=subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 2
    assert b"--model" in said and b"Traceback" not in said
