"""Two bounded queues between engine thread and I/O thread; neither touches the other's objects."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from contracts.errors import BatonError

Event = TypeVar("Event")


class MailboxFull(BatonError):
    """The other thread has stopped reading; the worker cannot continue."""


class Inbox(Generic[Event]):
    """Events for the engine thread. `post`, `wake` and `stop` are safe in any thread and in signal handlers."""

    def __init__(self, bound: int) -> None:
        # SimpleQueue's put is reentrant, unlike queue.Queue's. None only wakes the reader.
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._bound = bound
        self.stopping = False  # the engine thread has to stop
        self.error = ""  # the error that stopped it, if any

    def post(self, event: Event) -> None:
        """Adds an event without blocking. Raises `MailboxFull`."""
        if self._queue.qsize() >= self._bound:
            raise MailboxFull(f"--inbox: {self._bound!r}: so many events wait for the engine thread")
        self._queue.put(event)

    @property
    def anything(self) -> bool:
        """Whether the engine thread has an event, a wake-up, or a stop to handle."""
        return self.stopping or not self._queue.empty()

    def wake(self) -> None:
        """Wakes the engine thread if it waits."""
        self._queue.put(None)

    def stop(self, error: str = "") -> None:
        """Stops the engine thread. This is a flag, since the queue may be full."""
        self.error = self.error or error
        self.stopping = True
        self._queue.put(None)

    def take(self, wait: float) -> list[Event]:
        """Returns all waiting events in order; waits up to `wait` seconds for the first one, or for `stop`."""
        taken: list[Event | None] = []
        try:
            taken.append(self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait())
            while True:
                taken.append(self._queue.get_nowait())
        except queue.Empty:
            return [event for event in taken if event is not None]


class Outbox(Generic[Event]):
    """Events for the I/O thread's loop. One wake-up delivers all events posted until it runs."""

    PATIENCE = 30.0  # the engine thread waits this long for space

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._events: deque[Event] = deque()
        self._room = threading.Condition()
        self._reader: _Reader[Event] | None = None
        self._closed = False
        self._unread = False  # the reader has ended
        self._woken = False

    async def deliver(self, handle: Callable[[Event], None]) -> None:
        """Calls `handle` with each event on this loop, in order, from the first posted on; returns after `close`.

        Raises the first exception of `handle`, which ends the delivery.
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
        """Adds an event; waits for space up to `PATIENCE` seconds. Raises `MailboxFull`.

        After the reader has ended, events are dropped: the engine thread may still post some before it stops.
        """
        with self._room:
            if not self._room.wait_for(lambda: self._unread or len(self._events) < self._bound, self.PATIENCE):
                raise MailboxFull(f"--inbox: {self._bound!r}: so many events wait for the I/O thread")
            if not self._unread:
                self._events.append(event)
                self._wake()

    def close(self) -> None:
        """Ends `deliver` after the events posted before."""
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
        except Exception as error:  # asyncio would log it, and go on without the rest of the events
            reader.over.set_exception(error)
            return
        if closed:
            reader.over.set_result(None)


class _Reader(NamedTuple, Generic[Event]):
    """The receiver of events: its loop, its function, and a future for its end."""

    loop: asyncio.AbstractEventLoop
    handle: Callable[[Event], None]
    over: asyncio.Future[None]
