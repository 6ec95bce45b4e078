"""Notices what becomes of a socket's connections: a handshake that failed, as the other end has other keys; an end."""

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
    """Calls `happened` with each event of the socket that is one of `events`, until `close`. Needs the running loop."""

    def __init__(
        self, socket: zmq.asyncio.Socket, events: zmq.Event, happened: Callable[[int], None], tasks: Tasks
    ) -> None:
        """Begins to watch, by one of its owner's `tasks`. Raises `ZMQError` where no descriptor is left."""
        self._socket = socket
        self._happened = happened
        address = f"inproc://handshakes-{id(self)}"
        socket.monitor(address, events)
        # ZeroMQ's thread waits where the queue of events is full, with a lock that closing the socket needs.
        self._events = socket.context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.RCVHWM, 0)
        self._events.connect(address)
        self._task = tasks.start(self._read())

    async def close(self) -> None:
        """Stops watching, before or after the socket itself is closed."""
        if not self._socket.closed:
            self._socket.disable_monitor()  # first: an event without a receiver would hold ZeroMQ's thread for ever
        await end([self._task])
        self._events.close(0)

    async def _read(self) -> None:
        for number in itertools.count(1):
            if number % EVENTS_PER_TURN == 0:
                await asyncio.sleep(0)  # while events lie ready, reading them never suspends
            event = parse_monitor_message(await self._events.recv_multipart())
            if event["event"] != zmq.EVENT_MONITOR_STOPPED:
                self._happened(event["event"])
