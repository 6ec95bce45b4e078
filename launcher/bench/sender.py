"""Sends the requests of a load over HTTP, and times what comes back.

An open load sends a request when its time comes, however many are still in progress, so that a slow server cannot slow
down its own load. In a closed load, each client sends its next request when its last has ended.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from itertools import cycle, pairwise
from typing import Any, TypeVar

import httpx
import msgspec

from contracts.errors import GatewayError
from contracts.slo import Timings
from infra.completions_client import CompletionEvents, StreamedChunk, error_message
from infra.network.tls import trusting
from infra.process.ending import end
from infra.process.tasks import child
from launcher.endpoint import ClientEndpoint
from workloads.outcome import RequestOutcome
from workloads.request import PlannedRequest, TimedRequest

Answer = TypeVar("Answer")
JSON = {"content-type": "application/json"}
ROLES = ("user", "assistant")


class Sender:
    """Collects the outcomes of one load. `vocabulary`: random token ids are below it."""

    def __init__(self, client: httpx.AsyncClient, model: str, vocabulary: int) -> None:
        self._client = client
        self._model = model
        self._vocabulary = vocabulary
        self._began = time.perf_counter()
        self.sent = 0
        self.outcomes: list[RequestOutcome] = []

    async def open_load(
        self, requests: Iterable[TimedRequest], linger_s: float | None = None, begin: float | None = None
    ) -> None:
        """Sends each request at its time, and gives up unanswered requests `linger_s` after the last; None: never.

        `begin`: the load's start by `time.perf_counter`; None: now.
        """
        load = list(requests)
        self._began = time.perf_counter() if begin is None else begin
        sends = [partial(self.converse, each.request, each.due_s) for each in load]
        tasks = await send_at((each.due_s for each in load), sends, self._began)
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=linger_s)
        finally:
            await end(tasks)

    async def closed_load(self, requests: Iterator[PlannedRequest], clients: int, seconds: float) -> None:
        """Keeps `clients` requests in progress until the seconds are over or there are no more requests."""
        self._began = time.perf_counter()

        async def run_client() -> None:
            while (due := time.perf_counter() - self._began) < seconds and (request := next(requests, None)):
                await self.converse(request, due)

        tasks = [child(run_client()) for _ in range(clients)]
        try:
            await asyncio.gather(*tasks)
        finally:
            await end(tasks)

    async def converse(self, request: PlannedRequest, due_s: float) -> None:
        """Sends a request, and each later turn when its time has come; ends with the first answer that is not whole."""
        while await self.exchange(request, due_s) and request.then is not None:
            due_s = time.perf_counter() - self._began + request.then.pause_s
            await asyncio.sleep(request.then.pause_s)
            request = request.then.request

    async def exchange(self, request: PlannedRequest, due_s: float) -> bool:
        """Sends one request, and keeps its outcome, an error if this is cancelled. Returns whether it was answered."""
        path, body = self._spell(request)
        sent, pieces = time.perf_counter(), list[float]()
        self.sent += 1
        usage: StreamedChunk | None = None
        error = "no answer in time"
        try:
            async for chunk in stream(self._client, path, body):
                if chunk.text:
                    pieces.append(time.perf_counter())
                if chunk.tokens is not None:
                    usage = chunk
            error = "" if usage is not None else "the server sent no usage, so TPOT is not known"
        except GatewayError as failure:
            error = str(failure)
        finally:
            ended = time.perf_counter()
            times = due_s, sent - self._began, ended - self._began
            if usage is None or usage.tokens is None or error:
                self.outcomes.append(RequestOutcome(*times, error=error))
            else:
                pieces = pieces or [ended]  # an answer without text: its end is all that a client sees
                self.outcomes.append(
                    RequestOutcome(
                        *times,
                        Timings(1000 * (pieces[0] - sent), 1000 * (pieces[-1] - sent), usage.tokens),
                        tuple(1000 * (after - before) for before, after in pairwise(pieces)),
                        usage.prompt_tokens or 0,
                        usage.cached_tokens or 0,
                    )
                )
        return not error

    def _spell(self, request: PlannedRequest) -> tuple[str, dict[str, Any]]:
        """Returns the path and the body of a request."""
        if request.chat:
            messages = [{"role": role, "content": text} for role, text in zip(cycle(ROLES), request.chat, strict=False)]
            chat = {"messages": messages, "max_tokens": request.output_tokens}
            return "/v1/chat/completions", {"model": self._model, **chat}
        ids = [number for span in request.spans for number in span.ids(self._vocabulary)]
        fixed = {"max_tokens": request.output_tokens, "temperature": 0, "ignore_eos": True}
        return "/v1/completions", {"model": self._model, "prompt": ids, **fixed}


def http_client(endpoint: ClientEndpoint, timeout_s: float) -> httpx.AsyncClient:
    """Returns a client with as many connections as there are requests. Raises `ConfigError` for a bad certificate."""
    url = endpoint.client().url
    return httpx.AsyncClient(
        base_url=url,
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
        headers={"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {},
        verify=trusting(endpoint.cert, "certificate") if url.startswith("https") else True,
    )


async def send_at(
    times: Iterable[float], requests: Iterable[Callable[[], Coroutine[Any, Any, Answer]]], begin: float
) -> list[asyncio.Task[Answer]]:
    """Starts each request at its time, s from `begin`, and returns the tasks; all are cancelled if this is."""
    tasks = list[asyncio.Task[Answer]]()
    try:
        for at, request in zip(times, requests, strict=True):
            await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
            tasks.append(child(request()))
    except asyncio.CancelledError:
        await end(tasks)
        raise
    return tasks


async def stream(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> AsyncIterator[StreamedChunk]:
    """Posts `body` and yields the answer as it comes. Raises `GatewayError` for anything but a whole answer."""
    content = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
    events = CompletionEvents()
    try:
        async with client.stream("POST", path, content=content, headers=JSON) as response:
            if response.status_code != httpx.codes.OK:
                said = error_message(await response.aread())
                raise GatewayError(f"status {response.status_code}: {said}")
            async for data in response.aiter_bytes():
                for chunk in events.feed(data):
                    yield chunk
    except httpx.HTTPError as error:
        raise GatewayError(f"{type(error).__name__}: {error}") from None
    if not events.ended:
        raise GatewayError("the answer broke off")
