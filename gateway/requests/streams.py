"""All requests in progress: listened for, asked after, repeated, cancelled, and each sample ended exactly once."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import redis

from core.errors import QueueClosed
from core.ids import SequenceKey
from core.messages import NO_ROOM, Alive, Emitted, Failed, FromWorker, Started, Tokens
from core.records import FinishedRecord, RequestRecord
from core.sealing import Sealer
from core.slo import SLO
from core.store import ServerClock, Store
from gateway.errors import APIError, failed, timed_out
from gateway.reports.metrics import Metrics
from gateway.reports.records import error_of, finished_record, request_record
from gateway.requests.dispatch import Dispatch
from gateway.requests.request import Group
from gateway.requests.retry_budget import RetryBudget
from gateway.requests.sample import Attempt, Due, Fate, State
from gateway.requests.stream import Stream
from gateway.workers.connection import Link
from gateway.workers.directory import Workers

TICK = 0.05  # s between looks at the clock
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
        self._budget = RetryBudget(most, time.monotonic())
        self._streams: dict[SequenceKey, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: dict[str, Group] = {}
        self._dispatch: Dispatch
        self._metrics: Metrics
        self._report: Callable[[FinishedRecord], None]

    def attach(self, workers: Workers, metrics: Metrics, report: Callable[[FinishedRecord], None]) -> None:
        """The parts that need this one first."""
        self._dispatch = Dispatch(self._epoch, self._store, self._sealer, self._clock, workers)
        self._metrics, self._report = metrics, report

    def __len__(self) -> int:
        """Samples in progress."""
        return len(self._streams)

    def records(self) -> Iterator[RequestRecord]:
        """The requests in progress, as Redis shows them."""
        now, server = time.monotonic(), self._clock.now()
        return (request_record(group, server - (now - group.received)) for group in self.requests.values())

    def cancelling(self) -> int:
        """Cancellations that no worker has acknowledged yet."""
        return self._dispatch.cancelling()

    # the client's side ----------------------------------------------------------------------------------------------

    async def open(self, group: Group) -> None:
        """Sends a new request on its way. Raises `APIError` if that is not possible."""
        self.requests[group.request] = group
        self._streams.update({stream.request.key: stream for stream in group.streams})
        group.queued_at = self._clock.now()
        try:
            await self._dispatch.place(group, group.streams, first=True)
        except APIError as error:
            for stream in group.streams:
                self._fail(stream, error)
            raise
        except BaseException:
            self.leave(group)
            raise

    def leave(self, group: Group) -> None:
        """The client is gone, or has everything; in the first case the workers are told."""
        for stream in group.streams:
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
            case Started():
                self._started(link, message, now)
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
        self._dispatch.worker_gone(link.epoch)
        for stream in list(self._streams.values()):
            if stream.request.lost(link.epoch):
                self._retry(stream, "worker died")

    def _started(self, link: Link, message: Started, now: float) -> None:
        request, attempt = message.request, message.attempt
        group = self.requests.get(request)
        if group is not None and group.started(link.epoch, attempt, now):
            return
        for sample in group.beyond(attempt) if group is not None else message.samples:
            self._stale(link, SequenceKey(request, sample), attempt, ended=False)

    def _emitted(self, link: Link, emitted: Emitted, now: float) -> None:
        key = SequenceKey(emitted.request, emitted.sample)
        stream = self._streams.get(key)
        was = stream.request.state if stream is not None else None
        fresh = stream.request.emitted(link.epoch, emitted, now) if stream is not None else None
        if stream is None or fresh is None:
            self._stale(link, key, emitted.attempt, ended=emitted.finish is not None)
            return
        if was is not State.DECODE and stream.request.state is State.DECODE:
            self._dispatch.handed_off(stream)
        finish, early = stream.take(fresh, now)
        if finish is not None:
            self._end(stream, State.FINISHED, finish, cancel=early)
        elif stream.overrun():
            self._fail(stream, APIError(408, "the client reads too slowly", code="client_too_slow"))

    def _failed(self, link: Link, message: Failed, now: float) -> None:
        key = SequenceKey(message.request, message.sample)
        known = self._dispatch.acknowledged(link, key, message.attempt)
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
        self._metrics.dropped()
        self._dispatch.stale(link, key, attempt, ended)

    # time -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watches the clock until cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(TICK)

    def look(self, now: float) -> None:
        """One look: what is due is done."""
        self._dispatch.send_cancels(now)
        for stream in list(self._streams.values()):
            request = stream.request
            match request.due(now):
                case Due.DEADLINE:
                    self._fail(stream, timed_out(self._timeout))
                case Due.RETRY:
                    self._retry(stream, "silence")
                case Due.ADD:
                    assert request.attempt is not None
                    request.attempt.added = now  # once for all its samples, and not again before this one is through
                    self._spawn(self._add_again(self.requests[request.key.request], request.attempt))
                case Due.ASK:
                    self._dispatch.ask(stream)

    # attempts -------------------------------------------------------------------------------------------------------

    async def _add_again(self, group: Group, attempt: Attempt) -> None:
        """A closed stream means another worker."""
        try:
            await self._dispatch.add_again(group, attempt)
        except QueueClosed:
            for stream in group.trying(attempt) if not attempt.started else ():
                self._retry(stream, "queue closed")
        except (redis.RedisError, OSError, TimeoutError) as error:
            log.debug("a job could not be repeated, Redis is away: %s", error)

    def _retry(self, stream: Stream, reason: str) -> None:
        """Gives the attempt up and starts the next, for this sample alone, on other workers where there are some."""
        request = stream.request
        avoid = request.attempt.route.workers() if request.attempt is not None else ()
        self._dispatch.give_up(stream)
        waits = reason == NO_ROOM  # short memory is waited for up to the deadline; nobody has failed
        if not waits and (not request.may_retry() or not self._budget.take(time.monotonic())):
            self._fail(stream, failed(f"the request failed {request.retries} times, last: {reason}", "retries_failed"))
            return
        log.info("request %s, sample %d: an attempt ended (%s), trying again", *request.key, reason)
        self._metrics.retried(reason)
        self._spawn(self._place_again(stream, avoid))

    async def _place_again(self, stream: Stream, avoid: tuple[str, ...]) -> None:
        if stream.request.ended:
            return
        try:
            await self._dispatch.place(self.requests[stream.request.key.request], [stream], first=False, avoid=avoid)
        except APIError as error:
            self._fail(stream, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()  # a programmer's error reaches the loop's handler

    # ends -----------------------------------------------------------------------------------------------------------

    def _fail(self, stream: Stream, error: APIError) -> None:
        """Nothing, if it has ended."""
        if not stream.request.ended:
            stream.fail(error)
            self._end(stream, State.FAILED, error.code or "failed")

    def _end(self, stream: Stream, state: State, reason: str, cancel: bool = True) -> None:
        """The one end. `cancel`: the workers do not know yet; otherwise they only wait for the acknowledgement."""
        request = stream.request
        del self._streams[request.key]
        request.end(state)
        stream.reason = reason
        self._dispatch.ended(stream, cancel)
        group = self.requests[request.key.request]
        if group.ended:
            del self.requests[group.request]
            record = finished_record(group, self._model, self._slo, time.monotonic(), self._clock.now())
            self._metrics.ended(record)
            self._report(record)
