"""HTTP/1 on one connection: uvicorn's protocol, with limits, errors as JSON, and ends that clients understand.

Additions to uvicorn:
- a head has a deadline and a maximum size, and so have the bytes around a body's chunks;
- input that is not HTTP is answered in the shape of every other error;
- an answer that comes before the end of its request reaches the client: the rest is read and dropped, within bounds,
  because closing a socket with unread bytes sends a reset, which destroys unread data at the client;
- a client that has closed its half of the connection gets its answer (except over TLS, which has no half-close);
- HTTP/1.0 gets an answer that ends with the connection, without chunks.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, cast

import msgspec
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.errors import APIError, api_of, invalid, unavailable
from gateway.web.connections import Connections
from gateway.web.direct import SCOPE_EXTENSION, BodyWriter

MAX_HEAD_BYTES = 64 << 10  # of a request's line and headers, and of all chunk sizes and trailers
HEAD_TIMEOUT_S = 10.0  # from a request's first byte, or the connection's beginning, to the end of the headers
CHUNK_HEAD_BYTES = 32  # size and line ends of a chunk; further bytes count towards MAX_HEAD_BYTES
MAX_DROPPED_BYTES = 64 << 20  # of a request that are read and dropped after its answer
DROP_TIMEOUT_S = 10.0  # for which they are dropped
TURNED_AWAY_TIMEOUT_S = 1.0  # the same, for a connection beyond the limit
PROBE_INTERVALS_S = (
    0.25,
    1.0,
)  # before the second probe of a half-closed connection, and between later probes
HOST_REGEX = re.compile(rb"[\w.~%!$&'()*+,;=:\[\]-]*", re.ASCII)  # RFC 3986: host and port, both perhaps empty
CONTINUE_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"
PROBE_COMMENT = b": are you there?\n\n"  # between two events of a stream
_connection_log = logging.getLogger("uvicorn.error.connection")
_connection_log.setLevel(logging.ERROR)  # uvicorn also warns of bytes that are not HTTP, which any client may send


class ServerConfig(uvicorn.Config):
    """uvicorn's settings, and objects that all connections share."""

    def __init__(self, app: ASGIApp, max_connections: int, refused: Callable[[APIError], str], **settings: Any) -> None:
        super().__init__(app, http=HTTPConnection, ws="none", lifespan="off", **settings)
        self.open: Connections[HTTPConnection] = Connections(max_connections)
        self.refused = refused  # reports a refusal of a request that has not been read, and returns its new id


class HTTPConnection(HttpToolsProtocol):
    """One connection of a client, which uvicorn's parser calls back with each part of a request."""

    def __init__(self, config: ServerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.logger = _connection_log
        self.access_log = False  # uvicorn would log paths, which are clients' words
        self._connections = config.open
        self._report_refusal = config.refused
        self._head_bytes = 0  # of the request's line and headers so far
        self._in_head = False
        self._in_body = False
        self._framing_bytes = 0  # sizes and line ends around the body's chunks so far, beyond CHUNK_HEAD_BYTES each
        self._bad_host = False  # the header Host is missing, repeated or invalid
        self._timer: asyncio.TimerHandle | None = None  # of the head, of dropping, or of probing: never two at once
        self._dropping = False  # further input is read and dropped
        self._ignores_input = False  # the input was not HTTP: the parser gets no more of it
        self._dropped_bytes = 0
        self._keeps_alive = True  # after the last answer
        self._messages = 0
        self._probe_comment = b""  # may be written between two events of the answer; empty: nothing may

    # the connection -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._connections.opened(self):
            self._expect_head()
        else:
            error = unavailable(f"{self._connections.max_connections} connections are open", "too_many_connections")
            self._refuse(error, TURNED_AWAY_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.lost(self)
        self._set_timer(None)
        super().connection_lost(exc)

    def close_idle(self) -> None:
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._dropping:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > MAX_DROPPED_BYTES:
                self.transport.close()
                return
        if self._ignores_input:
            return
        if self._timer is None and self._idle():
            self._expect_head()  # an idle connection has ended with these bytes
        message = self._messages if self._in_body else None
        super().data_received(data)
        if message != self._messages:
            self._framing_bytes = 0  # part of the data was the head, so bytes around the body are unknown
            return
        self._framing_bytes += len(data)
        if self._in_body and self._framing_bytes > MAX_HEAD_BYTES and not self._ignores_input:
            self.send_400_response("")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Continues if a client only ended its sending half and waits for an answer."""
        cycle = self.cycle
        if self._idle() or self._dropping:
            return False
        if cycle.more_body:
            self._refuse(APIError(400, "the body is incomplete", code="body_incomplete"))
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return False  # TLS has no half-close: its client is gone
        cycle.keep_alive = False
        self._probe(0)
        return True

    # the parser's callbacks -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._head_bytes = self._framing_bytes = 0
        self._messages += 1
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._set_timer(None)
        self._connections.busy(self)
        hosts = [value for name, value in self.headers if name == b"host"]
        self._bad_host = self.parser.get_http_version() == "1.1" if not hosts else len(hosts) > 1
        if self._bad_host or not all(map(HOST_REGEX.fullmatch, hosts)):
            self._bad_host = True
            raise ValueError("no host")
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._framing_bytes -= CHUNK_HEAD_BYTES

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()
        if self._dropping:
            self._dropping, self._dropped_bytes = False, 0
            self._set_timer(None)
            if not self._keeps_alive:
                self.transport.close()

    # the answer -----------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, cast(Any, self._answering(cycle, app)))

    def _answering(self, cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
        """Returns the application with a `send` that adapts uvicorn's `cycle` to the additions of this module."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {SCOPE_EXTENSION: BodyWriter(cycle, chunked=scope["http_version"] != "1.0")}

            async def send_on(message: Message) -> None:
                last = message["type"] == "http.response.body" and not message.get("more_body", False)
                if cycle.waiting_for_100_continue:
                    cycle.keep_alive = False  # it is unknown whether the body will come
                if message["type"] == "http.response.start":
                    self._probe_comment = _comment_for(message["headers"], chunked=scope["http_version"] != "1.0")
                if scope["http_version"] == "1.0":
                    # Neither chunks nor a length: the connection's end ends the body.
                    cycle.chunked_encoding = False
                    cycle.expected_content_length = len(message.get("body", b""))
                if last:
                    self._keeps_alive = cycle.keep_alive
                    cycle.keep_alive |= cycle.more_body  # uvicorn would close while the client sends
                await send(message)

            await app(scope, receive, send_on)

        return answer

    def on_response_complete(self) -> None:
        if self.transport.is_closing():
            return
        super().on_response_complete()
        if not self._idle():  # a pipelined request is next
            return
        self._connections.answered(self)
        if self.cycle.more_body:
            self._drop(self._keeps_alive)
        elif self._in_head:
            self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Refuses input that is not HTTP, or too much of it; uvicorn's sentence is not used."""
        if self._head_bytes > MAX_HEAD_BYTES:
            error = APIError(
                431, f"the request's headers have more than {MAX_HEAD_BYTES} bytes", code="headers_too_large"
            )
        elif self._framing_bytes > MAX_HEAD_BYTES:
            error = invalid(f"there are more than {MAX_HEAD_BYTES} bytes around the body's chunks", code="invalid_http")
        elif self._bad_host:
            error = invalid("an HTTP/1.1 request has one header Host: a host, perhaps with a port", code="invalid_host")
        else:
            error = invalid("this is not an HTTP request", code="invalid_http")
        self._refuse(error)

    def _refuse(self, error: APIError, seconds: float = DROP_TIMEOUT_S) -> None:
        cycle, self._ignores_input = self.cycle, True
        if not self._idle():
            if not cycle.more_body:  # invalid input after a complete request: that request gets its answer
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
            id = cycle.scope["state"].get("id", "")  # the application reports it
            shaped = error.body_for(api_of(cycle.scope["path"]), id)
        else:
            id = self._report_refusal(error)
            shaped = error.body()
        body = msgspec.json.encode(shaped)
        headers = {**error.headers(), **({"x-request-id": id} if id else {})}
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n{more}"
        self.transport.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        self._drop(False, seconds)

    # time -----------------------------------------------------------------------------------------------------------

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _expect_head(self) -> None:
        self._unset_keepalive_if_required()
        self._set_timer(self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late))

    def _head_is_late(self) -> None:
        if not self._in_head:
            self.transport.close()  # it has asked for nothing
            return
        message = f"the request's headers were not here within {HEAD_TIMEOUT_S:g} s"
        self._refuse(APIError(408, message, code="headers_timeout"))

    def _drop(self, keeps_alive: bool, seconds: float = DROP_TIMEOUT_S) -> None:
        """Reads and drops the rest of a request, for a while. Without `keeps_alive` it is the connection's last one."""
        self._dropping = True
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if not keeps_alive and self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timer(self.loop.call_later(seconds, self.transport.abort))

    def _probe(self, number: int) -> None:
        """Writes to a half-closed client while it waits: a client that is gone altogether answers with a reset."""
        if self._idle() or self.transport.is_closing():
            return
        cycle = self.cycle
        if not (self.pipeline or self.flow.write_paused):
            before = CONTINUE_RESPONSE if cycle.scope["http_version"] != "1.0" else b""
            self.transport.write(self._probe_comment if cycle.response_started else before)
        wait = PROBE_INTERVALS_S[min(number, len(PROBE_INTERVALS_S) - 1)]
        self._set_timer(self.loop.call_later(wait, self._probe, number + 1))

    def _count_head(self, part: bytes) -> None:
        self._head_bytes += len(part)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("headers too large")


def _comment_for(headers: Iterable[tuple[bytes, bytes]], chunked: bool) -> bytes:
    """Returns the bytes of a comment within an answer of server-sent events; empty for other answers."""
    if not any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
        return b""
    return b"%x\r\n%b\r\n" % (len(PROBE_COMMENT), PROBE_COMMENT) if chunked else PROBE_COMMENT
