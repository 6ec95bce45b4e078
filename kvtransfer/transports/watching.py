"""Detects the end of a channel: of one of several connections, or of the process whose pool is written."""

from collections.abc import Callable

import zmq

from infra.network.socket_monitor import SocketMonitor
from infra.process.tasks import Tasks
from kvtransfer.transports.channel import Channel
from kvtransfer.transports.pool.channel import PoolChannel
from kvtransfer.transports.sockets.channel import SocketChannel


class Watching:
    """Watches one channel at a time. A channel's only connection reconnects by itself, so it is not watched."""

    def __init__(self, tasks: Tasks, ended: Callable[[], None]) -> None:
        """`ended` is called when a connection of the channel has ended."""
        self._tasks = tasks
        self._ended = ended
        self._channel: Channel | None = None
        self._watched: list[SocketMonitor] = []

    def watch(self, channel: Channel | None) -> None:
        """Watches this channel from now on, and no other."""
        for each in self._watched:
            self._tasks.start(each.close())
        self._watched.clear()
        self._channel = channel
        if isinstance(channel, PoolChannel):
            channel.watch(self._ended)
        if not isinstance(channel, SocketChannel) or len(channel.connections) == 1:
            return

        def happened(event: int) -> None:
            if self._channel is channel:
                self._ended()

        for connection in channel.connections:
            self._watched.append(SocketMonitor(connection.socket, zmq.Event.DISCONNECTED, happened, self._tasks))
