"""Writes the middle of a streamed body directly to its connection, past the ASGI layers."""

import asyncio

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

SCOPE_EXTENSION = "baton.body"  # key of the writer in an ASGI scope


class BodyWriter:
    """Writes parts of an answer's body between its head and its end, which are sent by ASGI."""

    def __init__(self, cycle: RequestResponseCycle, chunked: bool) -> None:
        self._cycle = cycle
        self._transport: asyncio.Transport = cycle.transport
        self._chunked = chunked

    def open(self) -> bool:
        cycle = self._cycle
        return cycle.response_started and not cycle.flow.write_paused

    def write(self, part: bytes) -> bool:
        """Writes a part, unless the client is gone. Returns False if the client should read before the next write."""
        if self._cycle.disconnected:
            return True
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part)
        return not self._cycle.flow.write_paused

    async def read(self) -> None:
        await self._cycle.flow.drain()


def body_writer(scope: Scope) -> BodyWriter:
    writer = scope["extensions"][SCOPE_EXTENSION]
    assert isinstance(writer, BodyWriter)
    return writer
