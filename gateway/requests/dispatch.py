"""Adds jobs to the streams of the workers that the router chooses, and cancels them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Generic

from contracts.errors import QueueClosed, StoreUnavailable
from contracts.ids import Ticket
from contracts.messages.job import AnyJob
from gateway.errors import APIError, unavailable
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.attempt import Attempt
from gateway.requests.body import body_of
from gateway.requests.entrance import Entrance, Visit
from gateway.requests.load_account import LoadAccount
from gateway.requests.notices import WorkerNotices
from gateway.requests.request import Request
from gateway.requests.routing import ROUTE_RETRY_S, RequestRouting
from gateway.requests.sample import Sample
from gateway.workers.directory import Known, WorkerDirectory
from infra.config.gateway import GatewayConfig
from pricing.routes.route import Choice

MAX_CLOSED_STREAMS = 4  # workers of one request that left before their job came


class Dispatch(Generic[Known]):
    """Finds routes and adds jobs. Its parts: admission (`entrance`), the workers' `load`, `notices` to workers."""

    def __init__(
        self,
        config: GatewayConfig,
        epoch: str,
        add_job: Callable[[AnyJob], Awaitable[Ticket]],
        server_now: Callable[[], float],
        workers: WorkerDirectory[Known],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`add_job` adds a job to its worker's stream, and raises `QueueClosed` or `StoreUnavailable`.

        `server_now` has the time of deadlines in jobs, and `clock` is local, s.
        """
        self.clock = clock
        self._server_now = server_now
        self._epoch = epoch
        self._add_job = add_job
        self._workers = workers
        self._link_prompt = config.link_prompt  # prompts with at least this many tokens are not sent through Redis
        self.entrance = Entrance(config, clock)
        self.load = LoadAccount(workers, self.entrance, metrics)
        self.notices = WorkerNotices(workers)
        correction = metrics.predictions.correction
        self._routing = RequestRouting(workers, self.load, correction, hand_off_always=config.handoff == "always")

    async def begin(self, request: Request) -> None:
        """Waits for the request's turn, finds a route, and adds one job for its samples, unless they end.

        Raises `APIError` if there is no route, or if the objective cannot be kept.
        """
        tries, avoid = MAX_CLOSED_STREAMS, list[str]()
        problem: APIError | None = None
        counted = False
        with Visit(self.entrance, request) as visit:
            while samples := [sample for sample in request.samples if not sample.ended]:
                choice = self._routing.choose(samples, avoid, self.clock())
                if choice is None or tries == 0:
                    raise problem or self._no_worker(samples)
                if not counted:
                    self.load.demand.came(choice, self.clock())
                    counted = True
                if not self._routing.may_begin(visit, choice):
                    await visit.wait()
                    continue
                problem = await self._try(request, samples, choice)
                if problem is None:
                    return
                tries = tries - 1 if problem.code == "no_workers" else 0
                avoid.append(choice.route.first())

    async def place(self, request: Request, samples: Sequence[Sample], avoid: Collection[str] = ()) -> None:
        """Finds a route for samples that are tried again, and adds one job for them, unless they end before.

        Without a worker it waits until the request's time-out, so that a partly delivered answer is not lost.
        """
        while samples := [sample for sample in samples if not sample.ended]:
            choice = self._routing.choose(samples, avoid, self.clock())
            if choice is not None:
                if await self._try(request, samples, choice) is None:
                    return
                avoid = {*avoid, choice.route.first()}
            await asyncio.sleep(ROUTE_RETRY_S)

    async def add_again(self, request: Request, attempt: Attempt) -> None:
        """Adds the same job once more; the worker drops its old copy.

        Raises `QueueClosed` if the worker has left, and `StoreUnavailable`.
        """
        if not attempt.started and request.trying(attempt):
            await self._add(request, attempt)

    def give_up(self, sample: Sample, reason: str) -> None:
        """Ends a sample's attempt, but not the sample, and cancels the attempt on its workers."""
        attempt = sample.abandon()
        if attempt is not None:
            attempt.ends(self.clock(), reason)
            self.load.gives_up(sample, attempt)
            self.notices.cancel(sample, attempt, self.clock())

    def ended(self, sample: Sample, cancel: bool) -> None:
        """Sends a sample's end to its workers. Without `cancel` they know it, and wait only for the acknowledgement."""
        self.load.ends(sample)
        if sample.attempt is not None:
            sample.attempt.ends(self.clock(), sample.reason)
        if cancel and sample.attempt is not None:
            self.notices.cancel(sample, sample.attempt, self.clock())
        else:
            self.notices.over(sample)

    def ahead(self) -> float:
        """Returns how far the server's clock is ahead of the local one, s."""
        return self._server_now() - self.clock()

    def in_line(self, sample: Sample) -> bool:
        """Returns whether the sample's job waits on the stream of a live worker."""
        attempt = sample.attempt
        if attempt is None or attempt.started:
            return False
        worker = self._workers.get(attempt.route.first())
        return worker is not None and attempt.waits(worker.taken)

    def lines(self, samples: Iterable[Sample]) -> dict[str, list[Ticket]]:
        """Returns the sorted tickets of these samples' waiting jobs, by worker epoch."""
        found: dict[str, set[Ticket]] = {}
        for sample in samples:
            if self.in_line(sample) and sample.attempt is not None:
                found.setdefault(sample.route.first(), set()).add(sample.attempt.ticket)
        return {worker: sorted(tickets) for worker, tickets in found.items()}

    async def _try(self, request: Request, samples: Sequence[Sample], choice: Choice) -> APIError | None:
        """Adds a job for these samples. Returns None, or gives the attempt up and returns the reason."""
        attempt = self.load.begins(request, samples, choice)
        try:
            await self._add(request, attempt)
            return None
        except QueueClosed:
            problem = unavailable("the chosen worker has left", "no_workers")
        except StoreUnavailable:
            problem = unavailable("the queue is out of reach", "queue_unavailable", 2.0)
        trying = request.trying(attempt)  # the other samples have ended, or are in another attempt
        for sample in trying:
            self.give_up(sample, problem.code or "")
        return problem if trying else None

    def _no_worker(self, samples: Sequence[Sample]) -> APIError:
        what = "no worker with this adapter is ready" if samples[0].prompt.adapter else "no worker is ready"
        return unavailable(what, "no_workers", 2.0)

    async def _add(self, request: Request, attempt: Attempt) -> None:
        decode = self._workers.get(attempt.route.decode)
        if decode is None:
            raise QueueClosed("the decode worker is gone")
        sample = request.trying(attempt)[0]
        if attempt.body is None and sample.length >= self._link_prompt:
            attempt.body = await body_of(sample)
            if not request.trying(attempt):
                return  # the samples have ended meanwhile
        job = request.job(attempt, self._epoch, decode.record.handoff_address, self.ahead())
        ticket = await self._add_job(job)
        attempt.add(self.clock(), ticket)
        self.load.queued(request, attempt, ticket)
