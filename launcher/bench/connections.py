"""HTTP/1.1 connections of the load generator, which hand on the bytes of an answer in the moment in which they arrive.

A library's client wakes a task for each piece of an answer, some 100 µs, so that a few hundred streams wait for each
other and not for the server. Here the socket's own callback reads the clock, and no task runs before the answer's end.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from contracts.errors import GatewayError
from infra.completions_client import MAX_RESPONSE_BYTES, error_message
from launcher.bench.own_delays import OwnDelays

MAX_IDLE_S = 3.0
"""Seconds after which an idle connection is not used any more: servers close idle connections, many after 5 s."""
STATUS_OK = 200
FIRST_FINAL_STATUS = 200
"""Lowest status of an answer; lower statuses are hints, and the answer follows."""


class BodyListener(Protocol):
    """Takes the body of an answer with status 200 as it arrives."""

    def feed(self, data: bytes, at: float) -> None:
        """Takes bytes that came at a moment of `time.perf_counter`. Raises `GatewayError` for bytes of no answer."""


class LoadConnections:
    """Connections to one server, as many as there are exchanges at once."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float, context: ssl.SSLContext | None) -> None:
        """`timeout_s`: seconds without a byte, after which an exchange has failed. `context`: TLS, for https."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if context is not None else 80)
        self._path = parts.path.rstrip("/")
        self._context = context
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self.delays = OwnDelays()
        fields = {"host": parts.netloc.rpartition("@")[2], "content-type": "application/json", **headers}
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())

    async def __aenter__(self) -> "LoadConnections":
        self.delays.watch()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.delays.close()
        while self._idle:
            self._idle.pop().close()

    async def post(self, path: str, body: bytes, reader: BodyListener) -> None:
        """Sends a request, and returns at the end of its answer. Raises `GatewayError` for anything but status 200."""
        head = f"POST {self._path}{path} HTTP/1.1\r\n{self._fields}content-length: {len(body)}\r\n\r\n"
        connection = self._waiting() or await self._connect()
        try:
            await connection.exchange(head.encode() + body, reader)
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()

    def _waiting(self) -> "_Connection | None":
        """Returns the connection that became idle last, if the server surely keeps it."""
        oldest = time.perf_counter() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.heard_at >= oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> "_Connection":
        try:
            async with asyncio.timeout(self._timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._timeout_s), self._host, self._port, ssl=self._context
                )
        except TimeoutError:
            raise GatewayError(f"no connection within {self._timeout_s:g} s") from None
        except OSError as error:
            raise GatewayError(f"cannot be reached: {error.strerror or error}") from None
        return connection


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self, timeout_s: float) -> None:
        self.reusable = False
        self.heard_at = 0.0
        self._timeout_s = timeout_s
        self._status, self._said = 0, b""
        self._ended: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit this class

    async def exchange(self, request: bytes, reader: BodyListener) -> None:
        """Raises `GatewayError` for anything but an answer with status 200."""
        self.reusable = False
        self._reader, self._status, self._said = reader, 0, b""
        self._parser = httptools.HttpResponseParser(self)
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self.heard_at = time.perf_counter()
        self._transport.write(request)
        silence = loop.call_later(self._timeout_s, self._check_silence, self._ended)
        try:
            await self._ended
        finally:
            silence.cancel()
            self._ended = None
        if self._status != STATUS_OK:
            message = error_message(self._said)
            raise GatewayError(f"status {self._status}: {message}" if message else f"status {self._status}")

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.perf_counter()
        if self._ended is None:  # bytes behind an answer
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(GatewayError(f"the answer is no HTTP: {error}"))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status != STATUS_OK:
            self._said = (self._said + body)[:MAX_RESPONSE_BYTES]
            return
        try:
            self._reader.feed(body, self.heard_at)
        except GatewayError as error:
            self._end(error)

    def on_message_complete(self) -> None:
        if self._status >= FIRST_FINAL_STATUS and self._ended is not None and not self._ended.done():
            self.reusable = self._parser.should_keep_alive()
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        # An answer without a length ends with its connection; its reader decides whether it is complete.
        self._end(None if self._status >= FIRST_FINAL_STATUS else GatewayError("the connection was closed unanswered"))

    def _end(self, error: GatewayError | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def _check_silence(self, ended: asyncio.Future[None]) -> None:
        if ended is not self._ended:
            return
        left = self.heard_at + self._timeout_s - time.perf_counter()
        if left <= 0:
            self._end(GatewayError(f"no byte for {self._timeout_s:g} s"))
        else:
            asyncio.get_running_loop().call_later(left, self._check_silence, ended)
