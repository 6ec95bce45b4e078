"""Sends the requests of a load over HTTP, and times their answers.

An open load sends a request when its time comes, however many are still in progress, so that a slow server cannot slow
down its own load. In a closed load, each client sends its next request when its last has ended.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from itertools import cycle, pairwise
from typing import Any, TypeVar

import msgspec

from contracts.errors import GatewayError
from contracts.slo import Timings
from infra.completions_client import CompletionEvents, StreamedChunk
from infra.network.tls import trusting
from infra.process.ending import end
from infra.process.tasks import child
from launcher.bench.connections import LoadConnections
from launcher.instance.endpoint import ClientEndpoint
from workloads.outcome import RequestOutcome
from workloads.request import PlannedRequest, TimedRequest

Answer = TypeVar("Answer")
ROLES = ("user", "assistant")
TIMER_TICK_S = 0.001
"""Resolution of the event loop's timers, which may end a tick too early."""


class StreamedAnswer:
    """The moments at which an answer's pieces of text and its last event came, and its usage.

    The last token of many answers has no text: it ends them. So an answer lasts until its last event, as at the server.
    """

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self.last = 0.0
        self.usage: StreamedChunk | None = None
        self._events = CompletionEvents()

    def feed(self, data: bytes, at: float) -> None:
        for chunk in self._events.feed(data):
            if chunk.text:
                self.pieces.append(at)
            if chunk.choices:
                self.last = at
            if chunk.tokens is not None:
                self.usage = chunk

    def check(self) -> None:
        """Raises `GatewayError` for an answer that is not whole."""
        if not self._events.ended:
            raise GatewayError("the answer broke off")
        if self.usage is None:
            raise GatewayError("the server sent no usage, so TPOT is not known")


class Sender:
    """Collects the outcomes of one load. `vocabulary`: random token ids are below it."""

    def __init__(self, connections: LoadConnections, model: str, vocabulary: int) -> None:
        self._connections = connections
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
            await _until(self._began + due_s)
            request = request.then.request

    async def exchange(self, request: PlannedRequest, due_s: float) -> bool:
        """Sends one request, and keeps its outcome, an error if this is cancelled. Returns whether it was answered."""
        path, body = self._spell(request)
        content = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
        answer = StreamedAnswer()
        sent = time.perf_counter()
        self.sent += 1
        error = "no answer in time"
        try:
            await self._connections.post(path, content, answer)
            answer.check()
            error = ""
        except GatewayError as failure:
            error = str(failure)
        finally:
            ended = time.perf_counter()
            times = due_s, sent - self._began, ended - self._began
            usage = answer.usage
            if usage is None or usage.tokens is None or error:
                self.outcomes.append(RequestOutcome(*times, error=error))
            else:
                pieces = answer.pieces or [answer.last or ended]  # a client sees only the end of an answer without text
                first, last = pieces[0], max(answer.last, pieces[-1])
                before = self._connections.delays.before
                self.outcomes.append(
                    RequestOutcome(
                        *times,
                        Timings(1000 * (first - sent), 1000 * (last - sent), usage.tokens),
                        tuple(1000 * (after - before) for before, after in pairwise(pieces)),
                        usage.prompt_tokens or 0,
                        usage.cached_tokens or 0,
                        own_delays_ms=(1000 * before(first), 1000 * before(last)),
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


def connections_to(endpoint: ClientEndpoint, timeout_s: float) -> LoadConnections:
    """Raises `GatewayError` for an unusable URL, and `ConfigError` for a bad certificate."""
    url = endpoint.client().url
    headers = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    context = trusting(endpoint.cert, "certificate") if url.startswith("https") else None
    return LoadConnections(url, headers, timeout_s, context)


async def send_at(
    times: Iterable[float], requests: Iterable[Callable[[], Coroutine[Any, Any, Answer]]], begin: float
) -> list[asyncio.Task[Answer]]:
    """Starts each request at its time, s from `begin`, and returns the tasks; all are cancelled if this is."""
    tasks = list[asyncio.Task[Answer]]()
    try:
        for at, request in zip(times, requests, strict=True):
            await _until(begin + at)
            tasks.append(child(request()))
    except asyncio.CancelledError:
        await end(tasks)
        raise
    return tasks


async def _until(at: float) -> None:
    """Waits until a moment of `time.perf_counter`, though a timer may end too early."""
    while (left := at - time.perf_counter()) > 0:
        await asyncio.sleep(max(left, TIMER_TICK_S))
