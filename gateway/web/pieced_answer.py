"""Sends a whole answer whose JSON is made in pieces: a large one holds up nobody else."""

import asyncio
from collections.abc import Iterable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class PiecedAnswer(Response):
    """Answers with pieces of JSON, the next of which is made when others have had their turn."""

    media_type = "application/json"

    def __init__(self, pieces: Iterable[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(None, 200, headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, as ASGI calls a response. The length is known, so that clients may go on."""
        pieces = []
        for piece in self._pieces:
            pieces.append(piece)
            await asyncio.sleep(0)
        self.headers["content-length"] = f"{sum(map(len, pieces))}"
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
