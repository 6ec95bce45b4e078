"""The two bounded queues between engine thread and I/O thread. Neither side ever touches the objects of the other."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from core.errors import BatonError

E = TypeVar("E")


class MailboxFull(BatonError):
    """The other thread has stopped reading; the worker cannot go on."""


class Inbox(Generic[E]):
    """Events to the engine thread. `post` is safe in any thread and in signal handlers."""

    def __init__(self, bound: int) -> None:
        self._queue: queue.SimpleQueue[E] = queue.SimpleQueue()  # its put may interrupt itself; queue.Queue's may not
        self._bound = bound

    def post(self, event: E) -> None:
        """Never blocks. Raises `MailboxFull`."""
        if self._queue.qsize() >= self._bound:
            raise MailboxFull(f"--inbox: {self._bound!r}: so many events wait for the engine thread")
        self._queue.put(event)

    def take(self, wait: float) -> list[E]:
        """All events that are there, in order; waits up to `wait` seconds for the first."""
        events: list[E] = []
        try:
            events.append(self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait())
            while True:
                events.append(self._queue.get_nowait())
        except queue.Empty:
            return events


class Outbox(Generic[E]):
    """Events to the I/O thread's loop. One wake-up serves all events that were posted until it runs."""

    PATIENCE = 30.0  # s that the engine thread waits for room

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._events: deque[E] = deque()
        self._room = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: Callable[[E], None] | None = None
        self._broken: Callable[[Exception], None]
        self._woken = False

    def attach(
        self, loop: asyncio.AbstractEventLoop, handle: Callable[[E], None], broken: Callable[[Exception], None]
    ) -> None:
        """From now on `handle` gets each event on `loop`, in order, beginning with those that wait.

        The first exception that it raises goes to `broken`, and is the end: no event is skipped.
        """
        with self._room:
            self._loop, self._handle, self._broken = loop, handle, broken
            self._wake()

    def detach(self) -> None:
        """The loop ends; later events are kept and never read."""
        with self._room:
            self._loop = None

    def post(self, event: E) -> None:
        """Waits for room, but not for ever. Raises `MailboxFull`."""
        with self._room:
            if not self._room.wait_for(lambda: len(self._events) < self._bound, self.PATIENCE):
                raise MailboxFull(f"--inbox: {self._bound!r}: so many events wait for the I/O thread")
            self._events.append(event)
            self._wake()

    def _wake(self) -> None:
        if self._loop is not None and self._events and not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        assert self._handle is not None
        with self._room:
            events, self._events, self._woken = self._events, deque(), False
            self._room.notify_all()
        try:
            for event in events:
                self._handle(event)
        except Exception as error:  # asyncio would log it and go on without the rest of the events
            self.detach()
            self._broken(error)
