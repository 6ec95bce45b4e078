"""Joins engine thread and I/O thread by two bounded queues. Neither side ever touches the objects of the other."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from contracts.errors import BatonError

Event = TypeVar("Event")


class MailboxFull(BatonError):
    """The other thread has stopped reading; the worker cannot go on."""


class Inbox(Generic[Event]):
    """Passes events to the engine thread. `post`, `wake` and `stop` are safe in any thread and in signal handlers."""

    def __init__(self, bound: int) -> None:
        # Its put may interrupt itself; queue.Queue's may not. None only wakes the reader.
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._bound = bound
        self.stopping = False  # the engine thread is to stop
        self.error = ""  # what broke, if that is why

    def post(self, event: Event) -> None:
        """Adds an event without ever blocking. Raises `MailboxFull`."""
        if self._queue.qsize() >= self._bound:
            raise MailboxFull(f"--inbox: {self._bound!r}: so many events wait for the engine thread")
        self._queue.put(event)

    @property
    def anything(self) -> bool:
        """Tells whether the engine thread has something to look at: an event, a wake-up, or the end."""
        return self.stopping or not self._queue.empty()

    def wake(self) -> None:
        """Ends the engine thread's wait, if it waits: something that it asks for has changed."""
        self._queue.put(None)

    def stop(self, error: str = "") -> None:
        """Tells the engine thread to stop, and ends its wait. A flag says so, for an inbox may be full just then."""
        self.error = self.error or error
        self.stopping = True
        self._queue.put(None)

    def take(self, wait: float) -> list[Event]:
        """Returns all events that are there, in order; waits up to `wait` seconds for the first, or for `stop`."""
        taken: list[Event | None] = []
        try:
            taken.append(self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait())
            while True:
                taken.append(self._queue.get_nowait())
        except queue.Empty:
            return [event for event in taken if event is not None]


class Outbox(Generic[Event]):
    """Passes events to the I/O thread's loop. One wake-up serves all events that were posted until it runs."""

    PATIENCE = 30.0  # s that the engine thread waits for room

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._events: deque[Event] = deque()
        self._room = threading.Condition()
        self._reader: _Reader[Event] | None = None
        self._closed = False
        self._unread = False  # its reader has ended: nobody will read any more
        self._woken = False

    async def deliver(self, handle: Callable[[Event], None]) -> None:
        """Calls `handle` with each event on this loop, in order, beginning with those that wait; returns after `close`.

        The first exception that `handle` raises is raised here, and is the end: no event is skipped.
        """
        loop = asyncio.get_running_loop()
        reader = _Reader(loop, handle, loop.create_future())
        with self._room:
            self._reader = reader
            self._wake()
        try:
            await reader.over
        finally:
            with self._room:
                self._reader, self._unread = None, True
                self._events.clear()
                self._room.notify_all()

    def post(self, event: Event) -> None:
        """Adds an event; waits for room up to `PATIENCE` seconds. Raises `MailboxFull`.

        When the reader has ended, events are dropped: the engine thread, which learns of it by its inbox, may still
        have some to post, and nothing would make room for them.
        """
        with self._room:
            if not self._room.wait_for(lambda: self._unread or len(self._events) < self._bound, self.PATIENCE):
                raise MailboxFull(f"--inbox: {self._bound!r}: so many events wait for the I/O thread")
            if not self._unread:
                self._events.append(event)
                self._wake()

    def close(self) -> None:
        """Ends `deliver`, once it has delivered what was posted before."""
        with self._room:
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and (self._events or self._closed) and not self._woken:
            self._woken = True
            self._reader.loop.call_soon_threadsafe(self._drain, self._reader)

    def _drain(self, reader: "_Reader[Event]") -> None:
        with self._room:
            events, self._events, self._woken = self._events, deque(), False
            closed = self._closed
            self._room.notify_all()
        if reader.over.done():
            return
        try:
            for event in events:
                reader.handle(event)
        except Exception as error:  # asyncio would log it and go on without the rest of the events
            reader.over.set_exception(error)
            return
        if closed:
            reader.over.set_result(None)


class _Reader(NamedTuple, Generic[Event]):
    """Names who gets the events: on which loop, by which function, and the future that says when it is over."""

    loop: asyncio.AbstractEventLoop
    handle: Callable[[Event], None]
    over: asyncio.Future[None]
