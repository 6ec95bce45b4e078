"""Owns what one HTTP request has of the gateway: its lease among its key's requests, and its requests at workers.

Its end ends them, whatever has become of the HTTP request. Nothing is owned by a coroutine's result: a coroutine that
was cancelled may return all the same, late, to nobody.
"""

from collections.abc import Mapping

from gateway.keys.caller import Caller
from gateway.keys.limiter import Limiter
from gateway.requests.open_requests import OpenRequests
from gateway.requests.request import Request


class Holdings:
    """Is a context around all of an HTTP request, from before its caller is known to behind its answer."""

    def __init__(self, id: str, in_progress: OpenRequests, limiter: Limiter) -> None:
        self.id = id
        self._in_progress = in_progress
        self._limiter = limiter
        self._requests: list[Request] = []
        self._over = False

    def __enter__(self) -> "Holdings":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    async def admit(self, caller: Caller, tokens: int | None) -> Mapping[str, str]:
        """Counts the HTTP request, and returns headers, as `Limiter.admit` does."""
        return await self._limiter.admit(caller, self.id, tokens)

    async def open(self, request: Request) -> None:
        """Sends a request on its way to workers, unless the HTTP request is over. Raises `APIError`."""
        if not self._over:
            self._requests.append(request)
            await self._in_progress.open(request)

    def end(self) -> None:
        """Ends the requests and the lease: the client is gone, or has everything. A second call changes nothing."""
        self._over = True
        for request in self._requests:
            self._in_progress.leave(request)
        self._limiter.settle(self.id, sum(request.used for request in self._requests))
