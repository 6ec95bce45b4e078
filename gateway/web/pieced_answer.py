"""Sends a whole answer whose JSON is made in pieces, so that a large answer does not block the event loop."""

import asyncio
from collections.abc import Iterable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class PiecedAnswer(Response):
    """An answer of JSON pieces, with a pause for other tasks after each."""

    media_type = "application/json"

    def __init__(self, pieces: Iterable[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(None, 200, headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The length of the body is sent, so that the connection can be reused."""
        pieces = []
        for piece in self._pieces:
            pieces.append(piece)
            await asyncio.sleep(0)
        self.headers["content-length"] = f"{sum(map(len, pieces))}"
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
