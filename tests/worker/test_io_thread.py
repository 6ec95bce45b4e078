"""The I/O thread's end reaches the engine thread, whatever it dies of."""

from dataclasses import replace
from typing import Any

from core.records import WorkerRecord
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


def test_a_thread_that_dies_of_a_full_inbox_tells_the_engine_thread() -> None:
    inbox: Inbox[Any] = Inbox(1)
    inbox.post("an event that nobody takes")
    life = replace(Bench().life, inbox=inbox)

    def make_transfer(*_: Any) -> Any:
        inbox.post("one more")

    thread = IOThread(life, RECORD, b"a secret of some length that is long enough", make_transfer)
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and thread.ready.is_set()
    assert inbox.stopping and "--inbox: 1" in inbox.error and thread.error == inbox.error
