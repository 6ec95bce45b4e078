"""Drives the requests in progress: receives tokens, asks, repeats, cancels, and ends each sample exactly once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from contracts.errors import QueueClosed, StoreUnavailable
from contracts.ids import AttemptKey, SampleKey
from contracts.messages.gateway import (
    REASON_NO_ROOM,
    REASON_UNREACHED,
    Alive,
    Emitted,
    Failed,
    News,
    Started,
    Tokens,
    Wanted,
)
from gateway.errors import APIError, failed, revoked, timed_out
from gateway.metrics.gateway_metrics import Metrics
from gateway.reports.traces import RequestTrace
from gateway.requests.attempt import Attempt, RetryBudget
from gateway.requests.dispatch import Dispatch
from gateway.requests.records import error_of, request_record
from gateway.requests.request import Request
from gateway.requests.sample import QUEUE_CLOSED, AdmittedPrompt, Due, Fate, Sample, State
from gateway.requests.stream import Stream
from gateway.workers.worker import Worker
from infra.config.gateway import GatewayConfig
from infra.process.tasks import Tasks
from infra.process.ticking import next_tick
from infra.redis.records import RequestRecord

TICK_S = 0.05  # between checks of the streams that did not run well at the last check
LOOK_AT_ALL_S = 0.5  # between checks of all streams
RECORDS_PER_TURN = 64  # records written in one turn of the event loop
log = logging.getLogger("baton.gateway")


class OpenRequests:
    """Drives every request in progress to its end; a `WorkerListener`. Runs on the event loop's thread only."""

    def __init__(
        self,
        config: GatewayConfig,
        dispatch: Dispatch[Any],
        metrics: Metrics,
        stream: Callable[[Sample, float, bool], Stream],
        ended: Callable[[Request], None],
        is_valid_key: Callable[[str], bool] = lambda key: True,
    ) -> None:
        """`stream` makes a sample's stream from the local time of its receipt, s, and whether its client streams.

        `ended` takes each request whose samples have all ended. API keys are named by their public parts.
        """
        self._dispatch = dispatch
        self._now = dispatch.clock
        self._metrics = metrics
        self._stream = stream
        self._ended = ended
        self._is_valid_key = is_valid_key
        self._closed: APIError | None = None  # at a shutdown: the error of every new request
        self._timeout = config.request_timeout
        self._budget = RetryBudget(config.max_requests, self._now())
        self._requests: dict[str, Request] = {}
        self._streams: dict[tuple[str, int], Stream] = {}  # of samples in progress, by `SampleKey`
        self._restless: dict[tuple[str, int], Stream] = {}  # the streams that every check includes
        self._looked = 0.0  # local time of the last check of all streams, s
        self._tasks = Tasks("requests in progress")
        metrics.add_gauge("baton:requests_waiting", self.waiting)

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        """Iterates over the streams in progress, in the order in which their requests began."""
        return iter(self._streams.values())

    def full(self) -> APIError:
        return self._dispatch.entrance.gate.full(self._now())

    def waiting(self) -> int:
        return len(self._dispatch.entrance.gate)

    async def records(self) -> list[RequestRecord]:
        """Describes the requests in progress for Redis, with pauses for other tasks."""
        ahead = self._dispatch.ahead()
        lines = self._dispatch.lines(stream.sample for stream in self._streams.values())
        found = []
        for number, request in enumerate(list(self._requests.values()), 1):
            if number % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
            if not request.ended:
                found.append(request_record(request, request.received + ahead, lines))
        return found

    def adapters(self) -> set[str]:
        return {stream.sample.prompt.adapter for stream in self._streams.values()} - {""}

    # the client's side ----------------------------------------------------------------------------------------------

    def request(
        self, prompt: AdmittedPrompt, name: str, received: float, streaming: bool, trace: RequestTrace | None = None
    ) -> Request:
        """Makes a request of an admitted prompt. Raises `APIError` at a shutdown, or if its key was revoked."""
        if self._closed is not None:
            raise self._closed
        if prompt.key and not self._is_valid_key(prompt.key):
            raise revoked()  # since its headers came
        deadline = received + self._timeout
        samples = [Sample(SampleKey(name, number), prompt, deadline) for number in range(prompt.samples)]
        return Request([self._stream(sample, received, streaming) for sample in samples], trace)

    async def open(self, request: Request) -> None:
        """Starts a new request. Raises `APIError` if it cannot begin."""
        self._requests[request.id] = request
        streams: dict[tuple[str, int], Stream] = {stream.sample.key: stream for stream in request.streams}
        self._streams.update(streams)
        self._restless.update(streams)
        self._metrics.opened()
        request.queued_at = self._now()
        try:
            await self._dispatch.begin(request)
        except APIError as error:
            for stream in request.streams:
                self._fail(stream, error)
            raise
        except BaseException:
            self.leave(request)
            raise

    def leave(self, request: Request) -> None:
        for stream in request.streams:
            if not stream.sample.ended:
                self._end(stream, State.CANCELLED, "client gone")

    def fail_all(self, error: APIError) -> None:
        self._closed = error
        for stream in list(self._streams.values()):
            self._fail(stream, error)

    def expire(self, stream: Stream) -> None:
        """Fails a sample whose deadline has passed."""
        self._fail(stream, timed_out(self._timeout))

    def revoke(self) -> None:
        for stream in list(self._streams.values()):
            if (key := stream.sample.admitted.key) and not self._is_valid_key(key):
                self._fail(stream, revoked())

    # the workers' side ----------------------------------------------------------------------------------------------

    def received(self, worker: Worker, news: News) -> None:
        now = self._now()
        match news:
            case Tokens(emitted=emitted):
                for each in emitted:
                    self._emitted(worker, each, now)
            case Started():
                self._started(worker, news, now)
            case Wanted():
                self._wanted(worker, news, now)
            case Alive():
                self._alive(worker, news, now)
            case Failed():
                self._failed(worker, news, now)

    def dropped(self) -> None:
        self._metrics.dropped()

    def died(self, worker: Worker) -> None:
        self._dispatch.notices.worker_gone(worker.epoch)
        if worker.welcomed and not worker.record.draining:
            self._metrics.worker_died(worker.record.role)
        for stream in list(self._streams.values()):
            if stream.sample.lost(worker.epoch):
                self._retry(stream, "worker died")

    def _started(self, worker: Worker, started: Started | Wanted, now: float) -> Request | None:
        """Records that a worker has taken a job; returns its request, or None if the attempt is no longer wanted."""
        request = self._requests.get(started.request)
        if request is not None and request.started(worker.epoch, started.attempt, now):
            return request
        for sample in request.beyond(started.attempt) if request is not None else started.samples:
            self._stale(worker, AttemptKey(started.request, sample, started.attempt))
        return None

    def _wanted(self, worker: Worker, wanted: Wanted, now: float) -> None:
        request = self._started(worker, wanted, now)
        if request is not None and (ids := request.piece(wanted.attempt, wanted.first)):
            worker.piece(wanted, ids)

    def _alive(self, worker: Worker, alive: Alive, now: float) -> None:
        stream = self._streams.get(alive.key.of)
        fate = stream.sample.alive(worker.epoch, alive, now) if stream is not None else None
        if stream is None or fate is None:
            self._stale(worker, alive.key)
        elif fate is Fate.RETRY:
            self._retry(stream, "lost after its handoff")

    def _emitted(self, worker: Worker, emitted: Emitted, now: float) -> None:
        stream = self._streams.get(emitted.key[:2])  # a `SampleKey` would cost as much as all the rest
        if stream is None:
            self._stale(worker, emitted.key, ended=emitted.finish is not None)
            return
        sample = stream.sample
        was = sample.state
        new = sample.emitted(worker.record.epoch, emitted, now)
        if new is None:
            self._stale(worker, emitted.key, ended=emitted.finish is not None)
            return
        if not new.token_ids and not sample.vector:
            if sample.gap:
                self._restless[sample.key] = stream
        elif (attempt := sample.attempt) is not None and attempt.forecast is not None:
            self._dispatch.load.first_token(self._requests[sample.key.request], attempt, now)
        if sample.state is not was and sample.state is State.DECODE:
            self._dispatch.load.handed_off(sample)
        finish, early = stream.take(new, now)
        if finish is not None:
            self._end(stream, State.FINISHED, finish, cancel=early)
        elif stream.overrun():
            self._fail(stream, _too_slow())

    def _failed(self, worker: Worker, message: Failed, now: float) -> None:
        known = self._dispatch.notices.acknowledged(worker, message.key)
        if message.reason not in ("unknown", "cancelled"):
            worker.ended(message.key)
        stream = self._streams.get(message.key.of)
        if stream is None:
            if not known and message.reason != "unknown":
                self._metrics.dropped()
            return
        if message.reason == REASON_UNREACHED and stream.sample.attempt is not None:
            worker.misses(stream.sample.route.decode, now)
        match stream.sample.failed(worker.epoch, message, now):
            case Fate.RETRY:
                self._retry(stream, message.reason)
            case Fate.FAIL:
                self._fail(stream, error_of(message, self._timeout))

    def _stale(self, worker: Worker, key: AttemptKey, ended: bool = False) -> None:
        self._metrics.dropped()
        self._dispatch.notices.stale(worker, key, ended)

    # time -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            self.look(self._now())
            await next_tick(TICK_S)

    def look(self, now: float) -> None:
        """Performs all actions that are due."""
        self._dispatch.notices.repeat_cancels(now)
        silent = []
        if abs(now - self._looked) >= LOOK_AT_ALL_S:
            self._looked, self._restless = now, dict(self._streams)
        for key, stream in list(self._restless.items()):
            sample = stream.sample
            if sample.runs_well(now):
                del self._restless[key]
                continue
            match sample.due(now, self._dispatch.in_line(sample)):
                case Due.DEADLINE:
                    self.expire(stream)
                case Due.RETRY:
                    self._retry(stream, "silence")
                case Due.ADD:
                    assert sample.attempt is not None
                    # once for all samples of the job, and not again before this addition is done
                    sample.attempt.added = now
                    request = self._requests[sample.key.request]
                    again = self._add_again(request, sample.attempt)
                    self._tasks.start(self._guarded(again, request.trying(sample.attempt)))
                case Due.ASK:
                    silent.append(sample)
        self._dispatch.notices.ask(silent)

    # attempts -------------------------------------------------------------------------------------------------------

    async def _add_again(self, request: Request, attempt: Attempt) -> None:
        """Adds a job again; if the stream is closed, its samples go to another worker."""
        try:
            await self._dispatch.add_again(request, attempt)
        except QueueClosed:
            for sample in request.trying(attempt) if not attempt.started else ():
                self._retry(self._streams[sample.key], QUEUE_CLOSED)
        except StoreUnavailable as error:
            log.debug("a job could not be repeated: %s", error)

    def _retry(self, stream: Stream, reason: str) -> None:
        """Gives the attempt up and starts the next one for this sample alone, on other workers if there are any."""
        sample = stream.sample
        self._restless[sample.key] = stream
        avoid = sample.attempt.route.workers() if sample.attempt is not None else ()
        self._dispatch.give_up(sample, reason)
        # lack of KV memory may last up to the deadline
        pause = 0.0 if reason == REASON_NO_ROOM else sample.moves_on(reason)
        if pause is None and (not sample.may_retry() or not self._budget.take(self._now())):
            self._fail(stream, failed(f"the request failed {sample.retries} times, last: {reason}", "retries_failed"))
            return
        log.info("request %s, sample %d: an attempt ended (%s), trying again", *sample.key, reason)
        self._metrics.retried(reason)
        again = self._place_again(stream, avoid, pause or 0.0)
        self._tasks.start(self._guarded(again, [sample]))

    async def _place_again(self, stream: Stream, avoid: tuple[str, ...], pause: float) -> None:
        sample = stream.sample
        await asyncio.sleep(pause)
        if not sample.ended:
            await self._dispatch.place(self._requests[sample.key.request], [sample], avoid)

    async def _guarded(self, work: Coroutine[Any, Any, None], samples: Sequence[Sample]) -> None:
        """Awaits `work` for these samples; a bug in it ends them, since nothing else would before their deadline."""
        try:
            await work
        except Exception:
            log.exception("request %s fails by a bug", samples[0].key.request)
            for sample in samples:
                if (stream := self._streams.get(sample.key)) is not None:
                    self._fail(stream, failed("the gateway failed; its log says why", "internal_error"))

    # ends -----------------------------------------------------------------------------------------------------------

    def _fail(self, stream: Stream, error: APIError) -> None:
        if not stream.sample.ended:
            stream.fail(error)
            self._end(stream, State.FAILED, error.code or "failed")

    def _end(self, stream: Stream, state: State, reason: str, cancel: bool = True) -> None:
        """Ends a sample. Without `cancel` its workers know it, and wait only for the acknowledgement."""
        sample = stream.sample
        del self._streams[sample.key]
        self._restless.pop(sample.key, None)
        sample.end(state, reason)
        self._dispatch.ended(sample, cancel)
        request = self._requests[sample.key.request]
        if request.ended:
            self._dispatch.entrance.leaves(request.id)
            del self._requests[request.id]
            self._ended(request)


def _too_slow() -> APIError:
    return APIError(408, "the client reads too slowly", code="client_too_slow")
