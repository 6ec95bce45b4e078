"""Owns what one HTTP request holds in the gateway: its lease at the rate limiter, and its requests at workers.

Its end releases all of it, however the HTTP request ends. Ownership never depends on a coroutine's result: a cancelled
coroutine may still return, too late for its caller.
"""

from collections.abc import Callable, Mapping, Sequence

from gateway.keys.caller import Caller
from gateway.keys.limiter import Limiter
from gateway.reports.traces import RequestTrace
from gateway.requests.open_requests import OpenRequests
from gateway.requests.request import Request
from gateway.requests.sample import AdmittedPrompt


class Holdings:
    """A context around an HTTP request, entered before its caller is known and left after its answer."""

    def __init__(self, new_id: Callable[[], str], open_requests: OpenRequests, limiter: Limiter) -> None:
        self.id = new_id()
        self._new_id = new_id
        self._open_requests = open_requests
        self._limiter = limiter
        self._requests: list[Request] = []
        self._trace: RequestTrace | None = None
        self._over = False

    def __enter__(self) -> "Holdings":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    async def admit(self, caller: Caller, tokens: int | None) -> Mapping[str, str]:
        return await self._limiter.admit(caller, self.id, tokens)

    async def open(
        self, prompts: Sequence[AdmittedPrompt], received: float, streaming: bool, trace: RequestTrace | None = None
    ) -> list[Request]:
        """Starts requests for these prompts, unless the HTTP request is over. Raises `APIError`.

        `received` is local time, s. The first request has the id of the HTTP request, the others have new ids. `trace`
        ends with the HTTP request.
        """
        self._trace = trace
        requests: list[Request] = []
        for number, prompt in enumerate(prompts):
            name = self._new_id() if number or self._requests else self.id
            requests.append(self._open_requests.request(prompt, name, received, streaming, trace))
            if not self._over:
                self._requests.append(requests[-1])
                await self._open_requests.open(requests[-1])
        return requests

    def end(self) -> None:
        """Ends the requests and the lease: the client is gone, or has its whole answer. Idempotent."""
        self._over = True
        for request in self._requests:
            self._open_requests.leave(request)
        self._limiter.settle(self.id, sum(request.used for request in self._requests))
        if self._trace is not None:
            self._trace.close()
            self._trace = None
