"""Sends server-sent events, or lines of JSON, as a response that ends when its client goes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import APIError
from gateway.openai.answers.replies import AnswerWriter
from gateway.web.direct import BodyWriter, body_writer
from gateway.web.disconnect import ClientGone, until_gone

MAX_UNREAD_S = 60.0  # after which a client that reads nothing is cut off
log = logging.getLogger("baton.gateway")


class EventStream(Response):
    """Streams events until they or the client end.

    The status line and `headers` wait for the first event, so that an earlier failure gets its true status, in the
    answer of `refuse`. A later failure ends the stream with the events of `end`, and is reported to `broke`.
    """

    def __init__(
        self,
        events: Callable[[AnswerWriter], Awaitable[None]],
        headers: Callable[[], Mapping[str, str]],
        refuse: Callable[[APIError], Response],
        end: Callable[[APIError], bytes],
        broke: Callable[[APIError], None],
        media: str,
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"}, media)
        del self.headers["content-length"]
        self._events = events
        self._late_headers = headers
        self._refuse = refuse
        self._end = end
        self._broke = broke

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._run(scope, receive, send))
        except ClientGone:
            log.debug("a client left its stream")
        except TimeoutError:
            self._broke(APIError(408, f"the client read nothing for {MAX_UNREAD_S:g} s", code="client_too_slow"))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def begin() -> None:
            self.headers.update(self._late_headers())
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        writer = EventWriter(body_writer(scope), begin)
        try:
            await self._events(writer)
        except APIError as error:
            if not writer.begun:
                await self._refuse(error)(scope, receive, send)
                return
            self._broke(error)
            await writer.send(self._end(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventWriter:
    """Writes events to one client: an `AnswerWriter`. `begin` sends the answer's head."""

    def __init__(self, body: BodyWriter, begin: Callable[[], Awaitable[None]]) -> None:
        self._body = body
        self._begin = begin
        self.begun = False
        self.open = body.open
        self.write = body.write

    async def send(self, events: bytes) -> None:
        """Begins the answer if needed, and writes. Raises `TimeoutError` if a client leaves much unread for long."""
        if not self.begun:
            self.begun = True
            await self._begin()
        if not self.write(events):
            async with asyncio.timeout(MAX_UNREAD_S):
                await self._body.read()
