"""Runs uvicorn with Baton's protocol, signals and TLS, and a shutdown in bounded time."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import cast

import uvicorn

from gateway.errors import APIError
from gateway.service import Gateway
from gateway.web.app import make_app
from gateway.web.protocol import HTTPConnection, ServerConfig
from infra.network.listening import LISTEN_BACKLOG
from infra.network.tls import HANDSHAKE_SECONDS, Certificate
from infra.process.tasks import Tasks

KEEP_ALIVE_S = 75  # s after which an idle connection is closed
CLOSE_TIMEOUT_S = 5  # s after which remaining connections are cut at a shutdown


def _refused(gateway: Gateway, error: APIError) -> str:
    id = gateway.new_id()
    gateway.refusals.report_connection(error, id)
    return id


class HTTPServer(uvicorn.Server):
    """Serves a gateway. On SIGTERM or SIGINT it awaits the gateway's `drain`, closes its connections and returns."""

    def __init__(self, gateway: Gateway, tls: Certificate | None = None) -> None:
        config = ServerConfig(
            make_app(gateway),
            gateway.config.max_connections,
            partial(_refused, gateway),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            backlog=LISTEN_BACKLOG,
        )
        super().__init__(config)
        self._gateway = gateway
        self._tls = tls
        self._tasks = Tasks("the server")

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on these sockets; TLS handshakes have a time limit."""
        await super().startup([])
        context = self._tls.context if self._tls is not None else None
        for listener in sockets or ():
            server = await asyncio.get_running_loop().create_server(
                self._connection,
                sock=listener,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if context is not None else None,
                backlog=self.config.backlog,
            )
            self.servers.append(server)
        if self._tls is not None:
            self._tasks.start(self._tls.follow())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends open answers first, then connections.

        If the port is shared, new connections go to other gateways at once.
        """
        if self._gateway.config.share_port:
            for server in self.servers:
                server.close()
        await self._gateway.drain()
        await super().shutdown(sockets)
        await self._tasks.close()

    def _connection(self) -> asyncio.Protocol:
        settings = cast(ServerConfig, self.config)
        return HTTPConnection(settings, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stops the server at a signal. uvicorn would raise the signal again, but a wanted end is no failure."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
