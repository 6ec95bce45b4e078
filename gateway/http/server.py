"""Runs uvicorn with our protocol, our signals, and an end in bounded time."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from functools import partial

import uvicorn

from core.network.listening import BACKLOG
from gateway.errors import APIError
from gateway.http.app import make_app
from gateway.http.protocol import ServerConfig
from gateway.service import Gateway

KEEP_ALIVE = 75  # s that an idle connection is kept
CLOSE_SECONDS = 5  # s until connections that do not end are cut


def _refused(gateway: Gateway, error: APIError) -> str:
    """Tells of a refusal by a connection, and returns the id that it is told by."""
    id = gateway.new_id()
    gateway.refusals.report(error, id)
    return id


class Server(uvicorn.Server):
    """Serves a gateway. On SIGTERM or SIGINT it awaits its `drain`, closes its connections and returns."""

    def __init__(self, gateway: Gateway) -> None:
        config = ServerConfig(
            make_app(gateway),
            gateway.config.max_connections,
            partial(_refused, gateway),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self._gateway = gateway

    def stop(self) -> None:
        """Begins the end, as a signal does."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends open answers first, then connections."""
        await self._gateway.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends the server at a signal. uvicorn would raise it once more at the end, but a wanted end is no failure."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
