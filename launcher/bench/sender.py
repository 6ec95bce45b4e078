"""Sends the requests of a load over HTTP, and times their answers.

An open load sends a request when its time comes, however many are still in progress, so that a slow server cannot slow
down its own load. In a closed load, each client sends its next request when its last has ended.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import cycle, pairwise
from typing import Any

import msgspec

from contracts.errors import GatewayError
from contracts.slo import Timings
from infra.completions_client import CompletionEvents, StreamedChunk
from infra.network.tls import trusting
from infra.process.ending import end
from infra.process.tasks import Tasks, child
from launcher.bench.connections import LoadConnections
from launcher.instance.endpoint import ClientEndpoint
from workloads.outcome import RequestOutcome
from workloads.request import PlannedRequest, TimedRequest

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
        self._any_event = False
        self._events = CompletionEvents()

    def feed(self, data: bytes, at: float) -> None:
        for chunk in self._events.feed(data):
            self._any_event = True
            if chunk.text:
                self.pieces.append(at)
            if chunk.choices:
                self.last = at
            if chunk.tokens is not None:
                self.usage = chunk

    def check(self) -> None:
        """Raises `GatewayError` for an answer that is not whole."""
        if not self._events.ended:
            raise GatewayError("the answer broke off" if self._any_event else "the answer is no stream of events")
        if not self.last:
            raise GatewayError("the answer has no choices")
        usage = self.usage
        if usage is None:
            raise GatewayError("the server sent no usage, so TPOT is not known")
        if min(usage.tokens or 0, usage.prompt_tokens or 0, usage.cached_tokens or 0) < 0:
            raise GatewayError("the server counts less than no tokens")


class Sender:
    """Sends one load, and hands on the outcome of each request when it ends, so that a long load fills no memory."""

    def __init__(
        self, connections: LoadConnections, model: str, vocabulary: int, hand_on: Callable[[RequestOutcome], None]
    ) -> None:
        """`vocabulary`: random token ids are below it."""
        self._connections = connections
        self._model = model
        self._vocabulary = vocabulary
        self._hand_on = hand_on
        self._began = time.perf_counter()
        self.sent = 0
        self.ended = 0
        self._gave_up = False

    async def open_load(
        self, requests: Iterable[TimedRequest], linger_s: float | None = None, begin: float | None = None
    ) -> None:
        """Sends each request at its time, and gives up unanswered requests `linger_s` after the last; None: never.

        Requests that are in progress when this is cancelled have no outcome.

        `begin`: the load's start by `time.perf_counter`; None: now.
        """
        self._began = time.perf_counter() if begin is None else begin
        in_progress = Tasks("the load")
        try:
            for each in requests:
                await sleep_until(self._began + each.due_s)
                in_progress.start(self.converse(each.request, each.due_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(linger_s):
                    await in_progress.finished()
            self._gave_up = True
        finally:
            await in_progress.close()
        if in_progress.error is not None:
            raise in_progress.error

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
            await sleep_until(self._began + due_s)
            request = request.then.request

    async def exchange(self, request: PlannedRequest, due_s: float) -> bool:
        """Sends one request, and hands on its outcome. Returns whether its answer was whole."""
        path, body = self._spell(request)
        content = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
        answer = StreamedAnswer()
        sent = time.perf_counter()
        self.sent += 1
        error = ""
        try:
            await self._connections.post(path, content, answer)
            answer.check()
        except GatewayError as failure:
            error = str(failure)
        except asyncio.CancelledError:
            if self._gave_up:
                self._end(self._outcome(due_s, sent, answer, "no answer in time"))
            raise
        self._end(self._outcome(due_s, sent, answer, error))
        return not error

    def _end(self, outcome: RequestOutcome) -> None:
        self.ended += 1
        self._hand_on(outcome)

    def _outcome(self, due_s: float, sent: float, answer: StreamedAnswer, error: str) -> RequestOutcome:
        """Returns what was seen of a request that has ended now. `error`: empty for a whole answer."""
        ended, usage = time.perf_counter(), answer.usage
        times = due_s, sent - self._began, ended - self._began
        if usage is None or usage.tokens is None or error:
            return RequestOutcome(*times, error=error)
        pieces = answer.pieces or [answer.last or ended]  # a client sees only the end of an answer without text
        first, last = pieces[0], max(answer.last, pieces[-1])
        delay_before = self._connections.delays.before
        return RequestOutcome(
            *times,
            Timings(1000 * (first - sent), 1000 * (last - sent), usage.tokens),
            tuple(1000 * (after - before) for before, after in pairwise(pieces)),
            usage.prompt_tokens or 0,
            usage.cached_tokens or 0,
            own_delays_ms=(1000 * delay_before(first), 1000 * delay_before(last)),
        )

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


async def sleep_until(at: float) -> None:
    """Waits until a moment of `time.perf_counter`, though a timer may end too early."""
    while (left := at - time.perf_counter()) > 0:
        await asyncio.sleep(max(left, TIMER_TICK_S))
