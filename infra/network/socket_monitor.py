"""Watches the connections of a ZeroMQ socket: failed handshakes, disconnections."""

import asyncio
import itertools
from collections.abc import Callable

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from infra.process.ending import end
from infra.process.tasks import Tasks

EVENTS_PER_TURN = 16


class SocketMonitor:
    """Calls `happened` with each of the socket's `events` until `close`. Needs a running event loop."""

    def __init__(
        self, socket: zmq.asyncio.Socket, events: zmq.Event, happened: Callable[[int], None], tasks: Tasks
    ) -> None:
        """Starts watching, as one of `tasks`. Raises `ZMQError` if no descriptor is left."""
        self._socket = socket
        self._happened = happened
        address = f"inproc://handshakes-{id(self)}"
        socket.monitor(address, events)
        # Unbounded: ZeroMQ's thread blocks on a full event queue while it holds a lock that closing the socket needs.
        self._events = socket.context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.RCVHWM, 0)
        self._events.connect(address)
        self._task = tasks.start(self._read())

    async def close(self) -> None:
        """Stops watching, before or after the socket is closed."""
        if not self._socket.closed:
            self._socket.disable_monitor()  # first: an event without a receiver would block ZeroMQ's thread for ever
        await end([self._task])
        self._events.close(0)

    async def _read(self) -> None:
        for number in itertools.count(1):
            if number % EVENTS_PER_TURN == 0:
                await asyncio.sleep(0)  # while events are queued, reading them never suspends
            event = parse_monitor_message(await self._events.recv_multipart())
            if event["event"] != zmq.EVENT_MONITOR_STOPPED:
                self._happened(event["event"])
