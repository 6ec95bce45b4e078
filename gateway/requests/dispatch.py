"""Brings samples to workers and takes them away: routes, jobs, cancellations, acknowledgements, load by worker."""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence

from msgspec import structs

from contracts.errors import QueueClosed, StoreUnavailable
from contracts.ids import AttemptKey, Ticket
from contracts.messages.gateway import Question
from gateway.errors import APIError, unavailable
from gateway.reports.metrics import Metrics
from gateway.reports.predictions import Forecast
from gateway.requests.attempt import Attempt
from gateway.requests.body import body_of
from gateway.requests.cancels import Cancels, Target
from gateway.requests.entrance import Entrance, Visit, seconds_of
from gateway.requests.request import Request
from gateway.requests.sample import Sample
from gateway.requests.verdict import SLOWER
from gateway.workers.connection import WorkerConnection
from gateway.workers.demand import Demand
from gateway.workers.directory import WorkerDirectory
from gateway.workers.kinds import kind_of
from gateway.workers.prompt_keys import PromptKeys, prompt_keys
from gateway.workers.route import Asked, Choice, Route
from gateway.workers.router import Router
from gateway.workers.standing import Look
from infra.config.gateway import GatewayConfig
from infra.network.sealing import Sealer
from infra.redis.clients import Store
from infra.redis.queue import add_job
from infra.redis.store import ServerClock
from pricing.backlog import Ahead, owner_of
from pricing.standing import Standing

ROUTE_EVERY = 0.1  # s between its looks for one
CANCEL_SECONDS = 30.0  # s past a request's deadline for which its cancellation is repeated; workers forget then
USUAL_OUTPUT = 128.0  # tokens of an answer, before any has ended
FRESH = 0.02  # the weight of an answer that has ended in what is usual
SHORT = 2048  # tokens of which the blocks' keys are computed in some 150 µs, on the event loop
TRIES = 4  # workers whose stream turned out to be closed, for one attempt


class Dispatch:
    """Sends jobs, cancellations and acknowledgements to workers, and counts what each of them has."""

    def __init__(
        self,
        config: GatewayConfig,
        epoch: str,
        store: Store,
        sealer: Sealer,
        clock: ServerClock,
        workers: WorkerDirectory,
        metrics: Metrics,
    ) -> None:
        self._epoch = epoch
        self._store = store
        self._sealer = sealer
        self._clock = clock
        self._workers = workers
        self._router = Router(hand_off_always=config.handoff == "always")
        self._link_prompt = config.link_prompt  # tokens from which on ids do not go by Redis
        self._usual_output = USUAL_OUTPUT  # tokens of an answer, as a moving average
        self._metrics = metrics
        self.entrance = Entrance(config)
        self.demand = Demand(time.monotonic())
        self._cancels = Cancels()

    # to workers -----------------------------------------------------------------------------------------------------

    async def begin(self, request: Request) -> None:
        """Finds a route for a new request, when its turn has come, and adds one job for its samples, unless they end.

        Raises `APIError` where there is no route, or where it cannot keep its objective.
        """
        tries, avoid = TRIES, list[str]()
        problem: APIError | None = None
        counted = False
        with Visit(self.entrance, request) as visit:
            while samples := [sample for sample in request.samples if not sample.ended]:
                choice = self._choose(samples, avoid)
                if choice is None or tries == 0:
                    raise problem or self._no_worker(samples)
                if not counted:
                    self.demand.came(choice, time.monotonic())
                    counted = True
                if not self._may_begin(visit, choice):
                    await visit.wait()
                    continue
                problem = await self._try(request, samples, choice)
                if problem is None:
                    return
                tries = tries - 1 if problem.code == "no_workers" else 0
                avoid.append(choice.route.first())

    async def place(self, request: Request, samples: Sequence[Sample], avoid: Collection[str] = ()) -> None:
        """Finds a route for samples that are tried again, and adds one job for all of them, unless they end before.

        Without a worker it waits, until the request's time-out: what the client has of the answer is worth more.
        """
        while samples := [sample for sample in samples if not sample.ended]:
            choice = self._choose(samples, avoid)
            if choice is not None:
                if await self._try(request, samples, choice) is None:
                    return
                avoid = {*avoid, choice.route.first()}
            await asyncio.sleep(ROUTE_EVERY)

    def _choose(self, samples: Sequence[Sample], avoid: Collection[str]) -> Choice | None:
        return self._router.pick(self._workers, self._asked(samples), time.monotonic(), avoid)

    def _may_begin(self, visit: Visit, choice: Choice) -> bool:
        """Judges a route by what is expected there, with what requests take beside, and by how sure that is."""
        predictions = self._metrics.predictions
        if (forecast := self._forecast(choice)) is not None:
            choice = choice._replace(ttft=predictions.expected(forecast))
        try:
            return visit.may_begin(choice, predictions.sure)
        except APIError:
            predictions.refused()
            raise

    async def _try(self, request: Request, samples: Sequence[Sample], choice: Choice) -> APIError | None:
        """Adds a job for these samples; returns why that was not possible, or None. The attempt is given up then."""
        attempt = self._begin(request, samples, choice)
        try:
            await self._add(request, attempt)
            return None
        except QueueClosed:
            problem = unavailable("the chosen worker has left", "no_workers")
        except StoreUnavailable:
            problem = unavailable("the queue is out of reach", "queue_unavailable", 2.0)
        trying = request.trying(attempt)  # the others have ended, or are on their way already
        for sample in trying:
            self.give_up(sample)
        return problem if trying else None

    def _no_worker(self, samples: Sequence[Sample]) -> APIError:
        what = "no worker with this adapter is ready" if samples[0].prompt.adapter else "no worker is ready"
        return unavailable(what, "no_workers", 2.0)

    async def add_again(self, request: Request, attempt: Attempt) -> None:
        """Adds the same job once more; its worker drops what it has of it.

        Raises `QueueClosed` if the worker has left, and `StoreUnavailable`.
        """
        if not attempt.started and request.trying(attempt):
            await self._add(request, attempt)

    def in_line(self, sample: Sample) -> bool:
        """Tells whether its job waits on the stream of a worker that lives."""
        attempt = sample.attempt
        if attempt is None or attempt.started:
            return False
        worker = self._workers.get(attempt.route.first())
        return worker is not None and attempt.waits(worker.taken)

    def lines(self, samples: Iterable[Sample]) -> dict[str, list[Ticket]]:
        """Returns the tickets of those of these samples' jobs that wait in line, sorted, by their workers' epochs."""
        found: dict[str, set[Ticket]] = {}
        for sample in samples:
            if self.in_line(sample) and sample.attempt is not None:
                found.setdefault(sample.route.first(), set()).add(sample.attempt.ticket)
        return {worker: sorted(tickets) for worker, tickets in found.items()}

    def ask(self, samples: Iterable[Sample]) -> None:
        """Asks both workers of each sample's attempt for the tokens behind those that have come: each worker once."""
        questions: dict[str, list[Question]] = {}
        for sample in samples:
            assert sample.attempt is not None
            for epoch in sample.attempt.route.workers():
                questions.setdefault(epoch, []).append(Question(sample.attempt_key, len(sample.tokens)))
        for epoch, asked in questions.items():
            if worker := self._workers.get(epoch):
                worker.ask(asked)

    async def standing(self) -> Standing:
        """Tells how the workers stand, and what comes to them, while others have their turns."""
        look = Look(self._workers, self.demand, time.monotonic())
        for _ in look.steps():
            await asyncio.sleep(0)
        return look.standing(self.entrance.gate.tokens)

    # from workers ---------------------------------------------------------------------------------------------------

    def handed_off(self, sample: Sample) -> None:
        """Notes that the decode worker has it: it is no load of the prefill worker any more."""
        self._uncount(sample, {sample.route.prefill})
        if sample.attempt is not None and (worker := self._workers.get(sample.route.decode)) is not None:
            worker.settles((sample.key.request, sample.attempt.number))

    def first_token(self, request: Request, attempt: Attempt, now: float) -> None:
        """Compares what was expected of a request's first attempt with when its first token came, once."""
        self.entrance.pace.ends(request.id, now, came=True)
        if (worker := self._workers.get(attempt.route.first())) is not None:
            worker.computed((request.id, attempt.number), now)
        if attempt.number == 1 and attempt.forecast is not None:
            before, measured = attempt.begun - request.received, now - request.received
            self._metrics.predictions.learn(attempt.forecast, attempt.expected, before, measured)
        attempt.forecast = None

    def give_up(self, sample: Sample) -> None:
        """Ends its attempt, but not the sample; its workers are told, so that they free what they hold."""
        attempt = sample.abandon()
        if attempt is not None:
            self.entrance.ends(sample)
            for worker in self._on(attempt.route):
                worker.settles((sample.key.request, attempt.number))
            self._uncount(sample, sample.counted)
            self._cancel(sample, attempt)

    def ended(self, sample: Sample, cancel: bool) -> None:
        """Tells its workers that it is over. Without `cancel` they know, and only wait for the acknowledgement."""
        self.entrance.ends(sample)
        if sample.tokens:
            self._usual_output += FRESH * (len(sample.tokens) - self._usual_output)
            self._expect_answer(sample)
        self._uncount(sample, sample.counted)
        attempt = sample.attempt
        if attempt is not None and cancel:
            self._cancel(sample, attempt)
        elif attempt is not None:
            for worker in self._on(attempt.route):
                worker.ended(sample.attempt_key)

    # cancellations --------------------------------------------------------------------------------------------------

    def send_cancels(self, now: float) -> None:
        """Repeats the cancellations that are due."""
        for epoch, key in self._cancels.due(now):
            if worker := self._workers.get(epoch):
                worker.cancel(key)

    def acknowledged(self, worker: WorkerConnection, key: AttemptKey) -> bool:
        """Notes that the worker has answered for this attempt; returns False if nothing was cancelled there."""
        return self._cancels.acknowledged(worker.epoch, key)

    def stale(self, worker: WorkerConnection, key: AttemptKey, ended: bool) -> None:
        """Tells a worker that something it has is over, unless it is being told already."""
        if ended:
            worker.ended(key)
        elif Target(worker.epoch, key.of) not in self._cancels:
            worker.cancel(key)

    def worker_gone(self, epoch: str) -> None:
        """Forgets the cancellations on a dead worker, which holds nothing."""
        self._cancels.worker_gone(epoch)

    # ----------------------------------------------------------------------------------------------------------------

    def _asked(self, samples: Sequence[Sample]) -> Asked:
        """Says what the router has to know of these samples."""
        sample = samples[0]
        admitted = sample.admitted
        left = admitted.limits.max_tokens - len(sample.tokens)
        return Asked(
            tokens=len(sample.prompt.token_ids) + len(sample.tokens),
            adapter=sample.prompt.adapter,
            keys=admitted.keys,
            samples=len(samples),
            owner=owner_of(sample.prompt.tenant, sample.prompt.weight),
            output_tokens=max(1, min(left, round(self._usual_output))),
            tpots=self.entrance.wanted.of_all(),
            tpot=seconds_of(admitted.objective) / SLOWER,
        )

    def _forecast(self, choice: Choice) -> Forecast | None:
        """Returns what the costs say of a choice's first token; None where nobody knows, or its worker has gone."""
        worker = self._workers.get(choice.route.first())
        if choice.ttft is None or worker is None:
            return None
        return Forecast(kind_of(worker.record), choice.ttft, choice.seconds)

    def _begin(self, request: Request, samples: Sequence[Sample], choice: Choice) -> Attempt:
        route = choice.route
        attempt = request.begin(samples, route, time.monotonic())
        self.entrance.begins(samples, route.decode)
        owner = owner_of(samples[0].prompt.tenant, samples[0].prompt.weight)
        self.entrance.pace.begins(request.id, choice.tokens, owner, time.monotonic())
        if (forecast := self._forecast(choice)) is not None:
            attempt.forecast, attempt.expected = forecast, self._metrics.predictions.expected(forecast)
        self._metrics.placed("handoff" if route.prefill else "short")
        placed = request.id, attempt.number
        for sample in samples:
            sample.counted = set(route.workers())
        for worker in self._on(route):
            worker.ours += len(samples)
            if worker.epoch == route.first():
                worker.computes(placed, Ahead(choice.tokens, choice.start, owner))
            else:
                worker.awaits(placed, choice.tokens + choice.start)
            self._expect(worker, samples[0].admitted.keys)
        return attempt

    async def _add(self, request: Request, attempt: Attempt) -> None:
        decode = self._workers.get(attempt.route.decode)
        if decode is None:
            raise QueueClosed("the decode worker is gone")
        sample = request.trying(attempt)[0]
        if attempt.body is None and sample.length >= self._link_prompt:
            attempt.body = await body_of(sample)
            if not request.trying(attempt):
                return  # they have ended meanwhile
        ahead = self._clock.server_now() - time.monotonic()  # of the server's clock
        job = request.job(attempt, self._epoch, decode.record.handoff_address, ahead)
        ticket = await add_job(self._store, self._sealer, job)
        attempt.add(time.monotonic(), ticket)
        if (first := self._workers.get(attempt.route.first())) is not None:
            first.queued((request.id, attempt.number), ticket)

    def _cancel(self, sample: Sample, attempt: Attempt) -> None:
        now = time.monotonic()
        for worker in self._on(attempt.route):
            until = max(sample.deadline, now) + CANCEL_SECONDS
            key = AttemptKey(sample.key.request, sample.key.sample, attempt.number)
            worker.cancel(self._cancels.add(worker.epoch, key, now, until))

    def _expect(self, worker: WorkerConnection, keys: PromptKeys) -> None:
        """Takes a prompt's blocks for its worker's already: others that begin alike, or go on from it, come at once."""
        worker.kept.expects(keys.get(worker.record.block_tokens, ()), time.monotonic())

    def _expect_answer(self, sample: Sample) -> None:
        """Takes an answer's blocks for its decode worker's: a client may go on from it before that tells of them."""
        worker = self._workers.get(sample.route.decode)
        prompt = structs.replace(sample.prompt, token_ids=sample.prompt.token_ids + sample.tokens[:-1])
        if worker is not None and sample.admitted.keys and len(prompt.token_ids) <= SHORT:
            self._expect(worker, prompt_keys(prompt, [worker.record.block_tokens]))

    def _uncount(self, sample: Sample, workers: set[str]) -> None:
        """Takes the sample out of the load of these workers."""
        for epoch in sample.counted & workers:
            if worker := self._workers.get(epoch):
                worker.ours -= 1
                if sample.attempt is not None:
                    worker.settles((sample.key.request, sample.attempt.number))
        sample.counted = sample.counted - workers

    def _on(self, route: Route) -> list[WorkerConnection]:
        return [worker for epoch in route.workers() if (worker := self._workers.get(epoch)) is not None]
