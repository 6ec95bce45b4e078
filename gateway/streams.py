"""All requests in progress: dispatched, listened for, asked after, repeated, cancelled, and each ended exactly once."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any

import redis

from core.errors import QueueClosed
from core.ids import SequenceKey
from core.messages import Alive, Emitted, Failed, FromWorker, Started, Tokens
from core.queue import add_job
from core.records import FinishedRecord, RequestRecord
from core.sealing import Sealer
from core.slo import SLO
from core.store import ServerClock, Store
from gateway.cancels import Cancels, Target
from gateway.errors import APIError, failed, timed_out, unavailable
from gateway.link import Link
from gateway.metrics import Metrics
from gateway.records import error_of, finished_record, request_record
from gateway.request import Attempt, Due, Fate, Route, State
from gateway.retry_budget import RetryBudget
from gateway.router import Router
from gateway.stream import Stream
from gateway.workers import Workers

TICK = 0.05  # s between looks at the clock
STORE_SECONDS = 3.0  # s that Redis gets to take a job
ROUTE_SECONDS = 30.0  # s that a retry waits for a worker
ROUTE_EVERY = 0.1
CANCEL_SECONDS = 30.0  # s past its deadline that a cancellation is repeated; workers forget then
TRIES = 4  # workers whose stream turned out to be closed, for one attempt
log = logging.getLogger("baton.gateway")


class Streams:
    """Ties requests to workers. Everything here runs on the event loop's thread."""

    def __init__(
        self,
        epoch: str,
        model: str,
        store: Store,
        sealer: Sealer,
        clock: ServerClock,
        slo: SLO,
        timeout: float,
        most: int,
    ) -> None:
        self._epoch = epoch
        self._model = model
        self._store = store
        self._sealer = sealer
        self._clock = clock
        self._slo = slo
        self._timeout = timeout
        self._router = Router()
        self._cancels = Cancels()
        self._budget = RetryBudget(most, time.monotonic())
        self._streams: dict[SequenceKey, Stream] = {}
        self._dispatches: set[asyncio.Task[None]] = set()
        self._workers: Workers
        self._metrics: Metrics
        self._report: Callable[[FinishedRecord], None]

    def attach(self, workers: Workers, metrics: Metrics, report: Callable[[FinishedRecord], None]) -> None:
        """The parts that need this one first."""
        self._workers, self._metrics, self._report = workers, metrics, report

    def __len__(self) -> int:
        return len(self._streams)

    def records(self) -> Iterator[RequestRecord]:
        """The requests in progress, as Redis shows them."""
        now, server = time.monotonic(), self._clock.now()
        return (request_record(stream, server - (now - stream.received)) for stream in self._streams.values())

    # the client's side ----------------------------------------------------------------------------------------------

    async def open(self, stream: Stream) -> None:
        """Sends a new request on its way. Raises `APIError` if that is not possible."""
        self._streams[stream.request.key] = stream
        stream.queued_at = self._clock.now()
        try:
            await self._dispatch(stream, first=True)
        except APIError as error:
            self._fail(stream, error)
            raise
        except BaseException:
            self.leave(stream)
            raise

    def leave(self, stream: Stream) -> None:
        """The client is gone, or has everything; in the first case its workers are told."""
        if not stream.request.ended:
            self._end(stream, State.CANCELLED, "client gone")

    def fail_all(self, error: APIError) -> None:
        """At a shutdown."""
        for stream in list(self._streams.values()):
            self._fail(stream, error)

    # the workers' side ----------------------------------------------------------------------------------------------

    def received(self, link: Link, message: FromWorker) -> None:
        """A message from a worker."""
        now = time.monotonic()
        match message:
            case Tokens(emitted=emitted):
                for one in emitted:
                    self._emitted(link, one, now)
            case Started(request=request, attempt=attempt):
                stream = self._streams.get(SequenceKey(request, 0))
                if stream is None or not stream.request.started(link.epoch, attempt, now):
                    self._stale(link, SequenceKey(request, 0), attempt, ended=False)
            case Alive(request=request, sample=sample, attempt=attempt):
                stream = self._streams.get(SequenceKey(request, sample))
                fate = stream.request.alive(link.epoch, message, now) if stream is not None else None
                if stream is None or fate is None:
                    self._stale(link, SequenceKey(request, sample), attempt, ended=False)
                elif fate is Fate.RETRY:
                    self._retry(stream, "lost after its handoff")
            case Failed():
                self._failed(link, message, now)

    def died(self, link: Link) -> None:
        """A worker is dead; what it had goes on elsewhere."""
        self._cancels.worker_gone(link.epoch)
        for stream in list(self._streams.values()):
            if stream.request.lost(link.epoch):
                self._retry(stream, "worker died")

    def _emitted(self, link: Link, emitted: Emitted, now: float) -> None:
        key = SequenceKey(emitted.request, emitted.sample)
        stream = self._streams.get(key)
        was = stream.request.state if stream is not None else None
        fresh = stream.request.emitted(link.epoch, emitted, now) if stream is not None else None
        if stream is None or fresh is None:
            self._stale(link, key, emitted.attempt, ended=emitted.finish is not None)
            return
        if was is not State.DECODE and stream.request.state is State.DECODE:
            self._uncount(stream, stream.workers[:1])
        finish, early = stream.take(fresh, now)
        if finish is not None:
            self._end(stream, State.FINISHED, finish, cancel=early)
        elif stream.overrun():
            self._fail(stream, APIError(408, "the client reads too slowly", code="client_too_slow"))

    def _failed(self, link: Link, message: Failed, now: float) -> None:
        key = SequenceKey(message.request, message.sample)
        known = self._cancels.acknowledged(Target(link.epoch, key), message.attempt)
        if message.reason not in ("unknown", "cancelled"):
            link.ended(*key, message.attempt)
        stream = self._streams.get(key)
        if stream is None:
            if not known and message.reason != "unknown":
                self._metrics.dropped()
            return
        match stream.request.failed(link.epoch, message, now):
            case Fate.RETRY:
                self._retry(stream, message.reason)
            case Fate.FAIL:
                self._fail(stream, error_of(message, self._timeout))

    def _stale(self, link: Link, key: SequenceKey, attempt: int, ended: bool) -> None:
        """News of something that is over: the worker is told, unless it is being told already."""
        self._metrics.dropped()
        if ended:
            link.ended(*key, attempt)
        elif Target(link.epoch, key) not in self._cancels:
            link.cancel(*key, attempt)

    # time -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watches the clock until cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(TICK)

    def look(self, now: float) -> None:
        """One look: what is due is done."""
        self._send_cancels(now)
        for stream in list(self._streams.values()):
            request = stream.request
            match request.due(now):
                case Due.DEADLINE:
                    self._fail(stream, timed_out(self._timeout))
                case Due.RETRY:
                    self._retry(stream, "silence")
                case Due.ADD:
                    assert request.attempt is not None
                    request.attempt.added = now  # not again before this one is through
                    self._spawn(self._add_again(stream, request.attempt))
                case Due.ASK:
                    assert request.attempt is not None
                    for link in self._links(request.attempt.route):
                        link.ask(*request.key, request.attempt.number, len(request.tokens))

    # dispatch -------------------------------------------------------------------------------------------------------

    async def _dispatch(self, stream: Stream, first: bool, avoid: tuple[str, ...] = ()) -> None:
        """Finds a route and adds the job. A new request fails at once where there is none; a retry waits for one."""
        until = min(stream.request.deadline, time.monotonic() + ROUTE_SECONDS)
        tries = TRIES
        while not stream.request.ended:
            tokens = len(stream.request.prompt) + len(stream.request.tokens)
            route = self._router.pick(self._workers, tokens, avoid)
            if route is None:
                tries, problem = 0, unavailable("no worker is ready", "no_workers", 2.0)
            else:
                try:
                    await self._add(stream, self._begin(stream, route))
                    return
                except QueueClosed:
                    avoid = (*avoid, route.first())
                    tries, problem = tries - 1, unavailable("the chosen worker has left", "no_workers")
                except (redis.RedisError, OSError, TimeoutError):
                    tries, problem = 0, unavailable("the queue is out of reach", "queue_unavailable", 2.0)
                self._abandon(stream)
            if time.monotonic() > until or (first and tries <= 0):
                raise problem
            if not first:
                await asyncio.sleep(ROUTE_EVERY)

    def _begin(self, stream: Stream, route: Route) -> Attempt:
        attempt = stream.request.begin(route, time.monotonic())
        stream.workers = (route.prefill, route.decode)
        stream.counted = set(route.workers())
        for link in self._links(route):
            link.ours += 1
        return attempt

    async def _add(self, stream: Stream, attempt: Attempt) -> None:
        """Puts the job on its stream. Raises `QueueClosed`, what redis raises, or TimeoutError."""
        decode = self._workers.get(attempt.route.decode)
        if decode is None:
            raise QueueClosed("the decode worker is gone")
        deadline = self._clock.now() + stream.request.deadline - time.monotonic()
        job = stream.request.job(self._epoch, decode.record.handoff_address, deadline, stream.queued_at)
        async with asyncio.timeout(STORE_SECONDS):
            await add_job(self._store, self._sealer, job)
        if stream.request.attempt is attempt:
            stream.request.added(time.monotonic())

    async def _add_again(self, stream: Stream, attempt: Attempt) -> None:
        """The same attempt once more; its worker drops it if it has it. A closed stream means another worker."""
        try:
            await self._add(stream, attempt)
        except QueueClosed:
            if stream.request.attempt is attempt and not stream.request.ended and not attempt.started:
                self._retry(stream, "queue closed")
        except (redis.RedisError, OSError, TimeoutError) as error:
            log.debug("a job could not be repeated, Redis is away: %s", error)

    def _retry(self, stream: Stream, reason: str) -> None:
        """Gives the attempt up and starts the next one, on other workers where there are some."""
        request = stream.request
        avoid = request.attempt.route.workers() if request.attempt is not None else ()
        self._abandon(stream)
        if not request.may_retry() or not self._budget.take(time.monotonic()):
            self._fail(stream, failed(f"the request failed {request.attempts} times, last: {reason}", "retries_failed"))
            return
        log.info("request %s: attempt %d ended (%s), trying again", request.key.request, request.attempts, reason)
        self._metrics.retried(reason)
        self._spawn(self._dispatch_again(stream, avoid))

    async def _dispatch_again(self, stream: Stream, avoid: tuple[str, ...]) -> None:
        try:
            await self._dispatch(stream, first=False, avoid=avoid)
        except APIError as error:
            if not stream.request.ended:
                self._fail(stream, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._dispatches.add(task)
        task.add_done_callback(self._dispatched)

    def _dispatched(self, task: asyncio.Task[None]) -> None:
        self._dispatches.discard(task)
        if not task.cancelled():
            task.result()  # a programmer's error reaches the loop's handler

    # ends -----------------------------------------------------------------------------------------------------------

    def _fail(self, stream: Stream, error: APIError) -> None:
        stream.fail(error)
        self._end(stream, State.FAILED, error.code or "failed")

    def _end(self, stream: Stream, state: State, reason: str, cancel: bool = True) -> None:
        """The one end. `cancel`: the workers do not know yet; otherwise they only wait for the acknowledgement."""
        request = stream.request
        del self._streams[request.key]
        request.end(state)
        self._uncount(stream, stream.counted)
        attempt = request.attempt
        if attempt is not None and cancel:
            self._cancel(stream, attempt)
        elif attempt is not None:
            for link in self._links(attempt.route):
                link.ended(*request.key, attempt.number)
        self._record(stream, reason)

    def _abandon(self, stream: Stream) -> None:
        """The attempt is over; its workers are told, so that they free what they hold."""
        attempt = stream.request.abandon() if not stream.request.ended else None
        if attempt is not None:
            self._uncount(stream, stream.counted)
            self._cancel(stream, attempt)

    def _cancel(self, stream: Stream, attempt: Attempt) -> None:
        now = time.monotonic()
        for link in self._links(attempt.route):
            until = max(stream.request.deadline, now) + CANCEL_SECONDS
            self._cancels.add(Target(link.epoch, stream.request.key), attempt.number, now, until)
        self._send_cancels(now)

    def _send_cancels(self, now: float) -> None:
        for target, attempt in self._cancels.due(now):
            if link := self._workers.get(target.worker):
                link.cancel(*target.key, attempt)

    def _uncount(self, stream: Stream, workers: Collection[str]) -> None:
        """These workers are done with it, as far as their load goes."""
        for worker in stream.counted & set(workers):
            if link := self._workers.get(worker):
                link.ours -= 1
        stream.counted -= set(workers)

    def _links(self, route: Route) -> list[Link]:
        return [link for worker in route.workers() if (link := self._workers.get(worker)) is not None]

    def _record(self, stream: Stream, reason: str) -> None:
        record = finished_record(stream, reason, self._model, self._slo, time.monotonic(), self._clock.now())
        self._metrics.ended(record)
        self._report(record)
