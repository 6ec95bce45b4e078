"""Runs uvicorn with what it lacks: bounded headers, JSON errors, our signals, and an end in bounded time."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.listening import BACKLOG
from gateway.errors import APIError, invalid

HEAD = 64 << 10  # bytes of a request's line and headers
KEEP_ALIVE = 75  # s that an idle connection is kept
CLOSE_SECONDS = 5  # s until connections that do not end are cut


class Server(uvicorn.Server):
    """Serves `app`. On SIGTERM or SIGINT it awaits `drain`, closes its connections and returns."""

    def __init__(self, app: FastAPI, drain: Callable[[], Awaitable[None]]) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self._drain = drain

    def stop(self) -> None:
        """Begins the end, as a signal does."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends open answers first, then connections."""
        await self._drain()
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


class _Protocol(HttpToolsProtocol):
    """Counts the bytes of the head, and answers what is no HTTP in the shape of every other error."""

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        if self._head > HEAD:
            error = APIError(431, f"the request's headers have more than {HEAD} bytes", code="headers_too_large")
        else:
            error = invalid("this is not an HTTP request", code="invalid_http")
        body = msgspec.json.encode(error.body())
        status = b"431 Request Header Fields Too Large" if error.status == 431 else b"400 Bad Request"
        head = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()

    def _count(self, part: bytes) -> None:
        self._head += len(part)
        if self._head > HEAD:
            raise ValueError("headers too large")
