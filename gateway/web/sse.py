"""Sends server-sent events as a response that ends with its client."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import APIError
from gateway.openai.answers.replies import DONE, event
from gateway.web.direct import BodyWriter, body_writer
from gateway.web.disconnect import ClientGone, until_gone

SEND_SECONDS = 60.0  # s that a client may leave a chunk unread
log = logging.getLogger("baton.gateway")


def openai_end(error: APIError) -> bytes:
    """Returns the last events of an OpenAI stream that has failed."""
    return event(error.body()) + DONE


class EventStream(Response):
    """Streams events until they or the client end.

    The status line and `headers` wait for the first event, so that what fails before it gets a true status: `refuse`
    answers it. What fails later ends the stream with the events of `end`, and `broke` hears of it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: Callable[[BodyWriter], AsyncGenerator[bytes, None]],
        headers: Callable[[], Mapping[str, str]],
        refuse: Callable[[APIError], Response],
        end: Callable[[APIError], bytes],
        broke: Callable[[APIError], None],
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._late_headers = headers
        self._refuse = refuse
        self._end = end
        self._broke = broke

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, as ASGI calls a response."""
        try:
            await until_gone(receive, self._run(scope, receive, send))
        except ClientGone:
            log.debug("a client left its stream")
        except TimeoutError:
            self._broke(APIError(408, f"the client read nothing for {SEND_SECONDS:g} s", code="client_too_slow"))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = body_writer(scope)
        started = False
        try:
            async with aclosing(self._events(writer)) as events:
                async for chunk in events:
                    if not started:
                        started = True
                        self.headers.update(self._late_headers())
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    if not writer.write(chunk):
                        await _until_read(writer)
        except APIError as error:
            if not started:
                await self._refuse(error)(scope, receive, send)
                return
            self._broke(error)
            if not writer.write(self._end(error)):
                await _until_read(writer)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_read(writer: BodyWriter) -> None:
    """Waits for a client that has much unread. Raises `TimeoutError`."""
    async with asyncio.timeout(SEND_SECONDS):
        await writer.read()
