"""The I/O thread: what it begins with, and that its end reaches the engine thread, whatever it dies of."""

from dataclasses import replace
from threading import current_thread
from typing import Any

import pytest
import torch

from core.errors import BatonError
from core.redis.records import WorkerRecord
from tests.worker.roles import Bench
from worker.io_thread import IOThread
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
    assert thread.ready.wait(20)
    thread.stop()
    assert not thread.is_alive()
    assert inbox.stopping and "--inbox: 1" in inbox.error and thread.error == inbox.error


def test_the_thread_begins_with_the_workers_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pinned memory, its events and its stream would be GPU 0's otherwise."""
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr("torch.cuda.set_device", lambda device: seen.append((current_thread().name, str(device))))

    def make_transfer(*_: Any) -> Any:
        seen.append((current_thread().name, "makes its transfer"))
        raise BatonError("that is enough")

    thread = IOThread(Bench().life, RECORD, SECRET, make_transfer, torch.device("cuda", 1))
    thread.start()
    assert thread.ready.wait(20)
    thread.stop()
    assert seen == [("io", "cuda:1"), ("io", "makes its transfer")]
