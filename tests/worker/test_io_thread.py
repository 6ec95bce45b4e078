"""The I/O thread: what it begins with, how it registers, and that its end reaches the engine thread."""

import asyncio
from dataclasses import replace
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
import torch
from msgspec import structs

from contracts.errors import BatonError, StoreRefused
from infra.config.store import StoreConfig
from infra.network.sealing import Sealer, Signer
from infra.process.status import read_status
from infra.redis.clients import Store
from infra.redis.queue import JOB_PURPOSE as JOBS
from infra.redis.queue import stream_of
from infra.redis.records import WorkerRecord
from infra.redis.registry import RECORD_PURPOSE, listed
from infra.redis.store import WAITING_STAGE
from tests.infra.redis.departing import Departing
from tests.kvtransfer.pair import until
from tests.waiting import wait_until
from tests.worker.gateway_end import Landings
from tests.worker.role_bench import Bench
from worker.io_thread import IOThread
from worker.life import Life
from worker.mailbox import Inbox

RECORD = WorkerRecord(
    epoch="me",
    role="decode",
    address="",
    handoff_address="",
    model="m",
    fingerprint="f",
    content="c",
    block_tokens=4,
    max_model_len=256,
    device="cpu",
    dtype="fp32",
    started_at=0.0,
)

SECRET = b"a secret of some length that is long enough"


def test_a_thread_that_dies_of_a_full_inbox_tells_the_engine_thread() -> None:
    inbox: Inbox[Any] = Inbox(1)
    inbox.post("an event that nobody takes")
    life = replace(Bench().life, inbox=inbox)

    def make_transfer(*_: Any) -> Any:
        inbox.post("one more")

    thread = IOThread(life, RECORD, SECRET, make_transfer, torch.device("cpu"))
    thread.start()
    wait_until(lambda: inbox.stopping, "the thread to give up")
    thread.stop()
    assert not thread.is_alive()
    assert "--inbox: 1" in inbox.error and str(thread.error) == inbox.error


def test_the_thread_begins_with_the_workers_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pinned memory, its events and its stream would be GPU 0's otherwise."""
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr("torch.cuda.set_device", lambda device: seen.append((current_thread().name, str(device))))

    def make_transfer(*_: Any) -> Any:
        seen.append((current_thread().name, "makes its transfer"))
        raise BatonError("that is enough")

    life = Bench().life
    thread = IOThread(life, RECORD, SECRET, make_transfer, torch.device("cuda", 1))
    thread.start()
    wait_until(lambda: life.inbox.stopping, "the thread to give up")
    thread.stop()
    assert seen == [("io", "cuda:1"), ("io", "makes its transfer")]


COMMANDS = [b"TIME", b"GETEX", b"XGROUP", b"PEXPIRE", b"ZADD", b"XADD"]
"""What a worker asks of Redis to register, in this order; one command of each question."""


@pytest.mark.parametrize("answered", [False, True], ids=["lost", "carried out"])
@pytest.mark.parametrize("command", COMMANDS, ids=bytes.decode)
async def test_a_worker_that_loses_redis_as_it_registers_waits(
    store: Store, clean_redis: str, tmp_path: Path, command: bytes, answered: bool
) -> None:
    """What it has loaded is worth more; all of the registration is done again."""
    redis = Departing(Path(clean_redis.removeprefix("unix://")), tmp_path / "redis", command, answered)
    await redis.back()
    status = tmp_path / "status"
    life = asked(redis.url, str(status))
    thread = IOThread(life, RECORD, SECRET, lambda *_: Landings(), torch.device("cpu"))
    thread.start()
    try:
        await until(redis.away.is_set, "the command")
        await until(lambda: stage(status) == WAITING_STAGE, "the thread to wait")
        assert not thread.registered and not life.inbox.stopping
        await redis.back()
        await until(lambda: stage(status) == "ready", "the registration")
        (found,) = await listed(store, Signer(SECRET, RECORD_PURPOSE), WorkerRecord)
        assert found.record.epoch == life.epoch
        job = Sealer(SECRET, JOBS).seal(b"a job", stream_of(life.epoch))
        assert await store.xadd(stream_of(life.epoch), {b"body": job}, nomkstream=True), "jobs can be added"
    finally:
        await asyncio.to_thread(thread.stop)
        await redis.leave()
    assert not life.inbox.error and not await listed(store, Signer(SECRET, RECORD_PURPOSE), WorkerRecord)


async def test_a_worker_that_waits_for_redis_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    status = tmp_path / "status"
    thread = IOThread(
        asked("redis://127.0.0.1:1", str(status)), RECORD, SECRET, lambda *_: Landings(), torch.device("cpu")
    )
    thread.start()
    await until(lambda: stage(status) == WAITING_STAGE, "the thread to wait")
    await asyncio.to_thread(thread.stop)
    assert not thread.is_alive() and thread.error is None


async def test_a_worker_that_redis_refuses_does_not_wait(clean_redis: str) -> None:
    life = asked(f"unix://stranger:wrong@{clean_redis.removeprefix('unix://')}")
    thread = IOThread(life, RECORD, SECRET, lambda *_: Landings(), torch.device("cpu"))
    thread.start()
    await until(lambda: life.inbox.stopping, "the thread to give up")
    await asyncio.to_thread(thread.stop)
    assert isinstance(thread.error, StoreRefused) and "--redis" in life.inbox.error and not thread.registered


def asked(url: str, status: str = "") -> Life:
    """The life of a worker that registers there."""
    life = Bench().life
    return replace(life, config=structs.replace(life.config, store=StoreConfig(redis=url), status_file=status))


def stage(path: Path) -> str:
    status = read_status(path)
    return status.stage if status is not None else ""
