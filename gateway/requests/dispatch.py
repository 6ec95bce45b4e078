"""How samples reach workers and leave them: routes, jobs, cancellations, acknowledgements, and what each worker has."""

import asyncio
import time
from collections.abc import Collection, Sequence

import redis

from core.errors import QueueClosed
from core.ids import SequenceKey
from core.queue import add_job
from core.sealing import Sealer
from core.store import ServerClock, Store
from gateway.errors import unavailable
from gateway.requests.cancels import Cancels, Target
from gateway.requests.request import Group
from gateway.requests.sample import Attempt, Route
from gateway.requests.stream import Stream
from gateway.workers.connection import Link
from gateway.workers.directory import Workers
from gateway.workers.router import Router

STORE_SECONDS = 3.0  # s that Redis gets to take a job
ROUTE_SECONDS = 30.0  # s that a retry waits for a worker
ROUTE_EVERY = 0.1
CANCEL_SECONDS = 30.0  # s past its deadline that a cancellation is repeated; workers forget then
TRIES = 4  # workers whose stream turned out to be closed, for one attempt


class Dispatch:
    """The gateway's end of all attempts."""

    def __init__(self, epoch: str, store: Store, sealer: Sealer, clock: ServerClock, workers: Workers) -> None:
        self._epoch = epoch
        self._store = store
        self._sealer = sealer
        self._clock = clock
        self._workers = workers
        self._router = Router()
        self._cancels = Cancels()

    # to workers -----------------------------------------------------------------------------------------------------

    async def place(self, group: Group, streams: Sequence[Stream], first: bool, avoid: Collection[str] = ()) -> None:
        """Finds a route for these samples and adds one job for all of them, unless they end before.

        Raises `APIError`: a new request fails at once where there is no route; a retry waits for one.
        """
        until = min(streams[0].request.deadline, time.monotonic() + ROUTE_SECONDS)
        tries = TRIES
        while streams := [stream for stream in streams if not stream.request.ended]:
            tokens = len(streams[0].request.prompt) + len(streams[0].request.tokens)
            route = self._router.pick(self._workers, tokens, avoid)
            if route is None:
                tries, problem = 0, unavailable("no worker is ready", "no_workers", 2.0)
            else:
                attempt = self._begin(group, streams, route)
                try:
                    await self._add(group, attempt)
                    return
                except QueueClosed:
                    avoid = (*avoid, route.first())
                    tries, problem = tries - 1, unavailable("the chosen worker has left", "no_workers")
                except (redis.RedisError, OSError, TimeoutError):
                    tries, problem = 0, unavailable("the queue is out of reach", "queue_unavailable", 2.0)
                streams = group.trying(attempt)  # the others have ended, or are on their way already
                for stream in streams:
                    self.give_up(stream)
                if not streams:
                    return
            if time.monotonic() > until or (first and tries <= 0):
                raise problem
            if not first:
                await asyncio.sleep(ROUTE_EVERY)

    async def add_again(self, group: Group, attempt: Attempt) -> None:
        """The same job once more; its worker drops what it has of it. Raises as `_add` does."""
        if not attempt.started and group.trying(attempt):
            await self._add(group, attempt)

    def ask(self, stream: Stream) -> None:
        """Both workers of its attempt for the tokens behind those that have come."""
        request = stream.request
        assert request.attempt is not None
        for link in self._links(request.attempt.route):
            link.ask(*request.key, request.attempt.number, len(request.tokens))

    # from workers ---------------------------------------------------------------------------------------------------

    def handed_off(self, stream: Stream) -> None:
        """The decode worker has it: it is no load of the prefill worker any more."""
        self._uncount(stream, stream.workers[:1])

    def give_up(self, stream: Stream) -> None:
        """The attempt is over, but not the sample; its workers are told, so that they free what they hold."""
        attempt = stream.request.abandon()
        if attempt is not None:
            self._uncount(stream, stream.counted)
            self._cancel(stream, attempt)

    def ended(self, stream: Stream, cancel: bool) -> None:
        """The sample is over. `cancel`: its workers do not know yet; otherwise they wait for the acknowledgement."""
        self._uncount(stream, stream.counted)
        attempt = stream.request.attempt
        if attempt is not None and cancel:
            self._cancel(stream, attempt)
        elif attempt is not None:
            for link in self._links(attempt.route):
                link.ended(*stream.request.key, attempt.number)

    # cancellations --------------------------------------------------------------------------------------------------

    def send_cancels(self, now: float) -> None:
        """Those that are due."""
        for target, attempt in self._cancels.due(now):
            if link := self._workers.get(target.worker):
                link.cancel(*target.key, attempt)

    def acknowledged(self, link: Link, key: SequenceKey, attempt: int) -> bool:
        """The worker has answered for this attempt; False if nothing was cancelled there."""
        return self._cancels.acknowledged(Target(link.epoch, key), attempt)

    def stale(self, link: Link, key: SequenceKey, attempt: int, ended: bool) -> None:
        """The worker has something that is over: it is told, unless it is being told already."""
        if ended:
            link.ended(*key, attempt)
        elif Target(link.epoch, key) not in self._cancels:
            link.cancel(*key, attempt)

    def worker_gone(self, worker: str) -> None:
        """A dead worker holds nothing."""
        self._cancels.worker_gone(worker)

    def cancelling(self) -> int:
        """Cancellations that are not acknowledged yet."""
        return len(self._cancels)

    # ----------------------------------------------------------------------------------------------------------------

    def _begin(self, group: Group, streams: Sequence[Stream], route: Route) -> Attempt:
        attempt = group.begin(streams, route, time.monotonic())
        for stream in streams:
            stream.workers = (route.prefill, route.decode)
            stream.counted = set(route.workers())
        for link in self._links(route):
            link.ours += len(streams)
        return attempt

    async def _add(self, group: Group, attempt: Attempt) -> None:
        """Puts the job on its stream. Raises `QueueClosed`, what redis raises, or TimeoutError."""
        decode = self._workers.get(attempt.route.decode)
        if decode is None:
            raise QueueClosed("the decode worker is gone")
        deadline = self._clock.now() + group.streams[0].request.deadline - time.monotonic()
        job = group.job(attempt, self._epoch, decode.record.handoff_address, deadline)
        async with asyncio.timeout(STORE_SECONDS):
            await add_job(self._store, self._sealer, job)
        attempt.add(time.monotonic())

    def _cancel(self, stream: Stream, attempt: Attempt) -> None:
        now = time.monotonic()
        for link in self._links(attempt.route):
            until = max(stream.request.deadline, now) + CANCEL_SECONDS
            self._cancels.add(Target(link.epoch, stream.request.key), attempt.number, now, until)
        self.send_cancels(now)

    def _uncount(self, stream: Stream, workers: Collection[str]) -> None:
        """These workers are done with it, as far as their load goes."""
        for worker in stream.counted & set(workers):
            if link := self._workers.get(worker):
                link.ours -= 1
        stream.counted -= set(workers)

    def _links(self, route: Route) -> list[Link]:
        return [link for worker in route.workers() if (link := self._workers.get(worker)) is not None]
