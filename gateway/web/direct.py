"""Writes the middle of a streamed body to its connection, past everything that only heads and ends concern."""

import asyncio

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

SCOPE_EXTENSION = "baton.body"  # its name in an ASGI scope


class BodyWriter:
    """Writes parts of one answer's body between its head and its end, which go the way of ASGI."""

    def __init__(self, cycle: RequestResponseCycle, chunked: bool) -> None:
        self._cycle = cycle
        self._transport: asyncio.Transport = cycle.transport
        self._chunked = chunked

    def open(self) -> bool:
        cycle = self._cycle
        return cycle.response_started and not cycle.flow.write_paused

    def write(self, part: bytes) -> bool:
        """Writes a part, unless the client is gone. Returns False where it should read before more is written."""
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
