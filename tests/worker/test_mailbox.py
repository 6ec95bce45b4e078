"""Events pass between the threads in order, none is lost, and a full box says so."""

import asyncio
import signal
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from tests.waiting import DEADLINE_S
from worker.mailbox import Inbox, MailboxFull, Outbox


def post_all(box: Any, events: Iterable[Any]) -> None:
    for event in events:
        box.post(event)


def test_the_inbox_keeps_order_across_threads() -> None:
    inbox: Inbox[tuple[int, int]] = Inbox(100_000)
    threads = [
        threading.Thread(target=post_all, args=[inbox, [(who, number) for number in range(2000)]]) for who in range(4)
    ]
    for thread in threads:
        thread.start()
    got: list[tuple[int, int]] = []
    while len(got) < 8000:
        events = inbox.take(10.0)
        assert events, "nothing within ten seconds"
        got += events
    for thread in threads:
        thread.join()
    for who in range(4):
        assert [number for sender, number in got if sender == who] == list(range(2000))


def test_the_inbox_takes_posts_from_a_signal_handler_while_it_waits() -> None:
    inbox: Inbox[str] = Inbox(10)
    before = signal.signal(signal.SIGUSR1, lambda *_: inbox.post("signal"))
    try:
        waker = threading.Thread(target=signal.pthread_kill, args=[threading.main_thread().ident, signal.SIGUSR1])
        waker.start()
        assert inbox.take(10.0) == ["signal"]
        waker.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_full_inbox_says_so() -> None:
    inbox: Inbox[int] = Inbox(2)
    inbox.post(1)
    inbox.post(2)
    with pytest.raises(MailboxFull, match="--inbox"):
        inbox.post(3)


def test_a_full_inbox_can_be_stopped_and_says_why() -> None:
    inbox: Inbox[int] = Inbox(1)
    inbox.post(1)
    inbox.stop()
    inbox.stop("it broke")
    inbox.stop()
    assert (inbox.stopping, inbox.error, inbox.take(0.0)) == (True, "it broke", [1])


def test_a_stop_wakes_the_reader() -> None:
    inbox: Inbox[int] = Inbox(1)
    stopper = threading.Thread(target=inbox.stop)
    stopper.start()
    while not inbox.stopping:
        assert inbox.take(10.0) == []
    stopper.join()


def test_an_empty_inbox_does_not_wait_when_told_so() -> None:
    inbox: Inbox[int] = Inbox(2)
    assert inbox.take(0.0) == []


def test_the_outbox_delivers_in_order_what_came_before_and_after_the_loop() -> None:
    outbox: Outbox[int] = Outbox(100)
    got: list[int] = []

    async def read() -> None:
        writer = threading.Thread(target=post_all, args=[outbox, range(50, 5000)])
        writer.start()  # far more than the bound: the writer waits for room

        def handle(event: int) -> None:
            got.append(event)
            if event == 4999:
                outbox.close()

        await asyncio.wait_for(outbox.deliver(handle), DEADLINE_S)
        writer.join()

    for number in range(50):
        outbox.post(number)
    asyncio.run(read())
    assert got == list(range(5000))


def test_an_outbox_that_nobody_reads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outbox, "PATIENCE", 0.01)
    outbox: Outbox[int] = Outbox(1)
    outbox.post(1)
    with pytest.raises(MailboxFull):
        outbox.post(2)


def test_an_event_that_cannot_be_handled_ends_the_outbox_and_says_why() -> None:
    outbox: Outbox[int] = Outbox(100)
    got: list[int] = []

    def handle(event: int) -> None:
        if event == 2:
            raise ValueError("two")
        got.append(event)

    async def read() -> None:
        for number in range(5):
            outbox.post(number)
        with pytest.raises(ValueError, match="two"):
            await asyncio.wait_for(outbox.deliver(handle), DEADLINE_S)

    asyncio.run(read())
    assert got == [0, 1]


def test_an_outbox_whose_reader_has_ended_takes_what_is_posted_and_never_fills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Outbox, "PATIENCE", 20.0)
    outbox: Outbox[int] = Outbox(1)

    def handle(event: int) -> None:
        raise ValueError("one")

    outbox.post(1)
    with pytest.raises(ValueError, match="one"):
        asyncio.run(outbox.deliver(handle))
    post_all(outbox, range(5))


def test_what_was_posted_before_the_close_is_delivered_before_the_end() -> None:
    outbox: Outbox[int] = Outbox(100)
    got: list[int] = []
    for number in range(5):
        outbox.post(number)
    outbox.close()
    asyncio.run(outbox.deliver(got.append))
    assert got == [0, 1, 2, 3, 4]
