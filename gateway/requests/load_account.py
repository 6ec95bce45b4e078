"""Accounts for the load that this gateway's requests put on workers: sequences, expected KV, and forecasts."""

import asyncio
from collections.abc import Sequence
from typing import Generic

from contracts.ids import Ticket
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.attempt import Attempt
from gateway.requests.entrance import Entrance, seconds_of
from gateway.requests.request import Request
from gateway.requests.sample import Sample
from gateway.requests.verdict import TPOT_SAFETY_FACTOR
from gateway.workers.directory import Known, WorkerDirectory
from gateway.workers.standing import StandingSurvey
from pricing.routes.backlog import PromptWork, owner_of
from pricing.routes.correction import Forecast
from pricing.routes.route import Choice, Route, RouteRequest
from pricing.scaling.demand import Demand
from pricing.scaling.standing import Standing

FIRST_OUTPUT_TOKENS = 128.0  # assumed length of an answer, while none has ended
OUTPUT_TOKENS_WEIGHT = 0.02  # weight of a finished answer in the moving average
MAX_HASHED_TOKENS = 2048  # longest prompt + answer that is hashed: some 150 µs on the event loop


class LoadAccount(Generic[Known]):
    """Counts samples by worker from the beginning of their attempt to its end, and describes samples to the router."""

    def __init__(self, workers: WorkerDirectory[Known], entrance: Entrance, metrics: Metrics) -> None:
        self._workers = workers
        self._entrance = entrance
        self._metrics = metrics
        self._output_tokens = FIRST_OUTPUT_TOKENS  # moving average of an answer's length
        self.demand = Demand(entrance.clock())

    def asked(self, samples: Sequence[Sample]) -> RouteRequest:
        """Returns the router's view of samples of one prompt."""
        sample = samples[0]
        admitted = sample.admitted
        left = admitted.limits.max_tokens - len(sample.tokens)
        return RouteRequest(
            tokens=len(sample.prompt.token_ids) + len(sample.tokens),
            adapter=sample.prompt.adapter,
            keys=admitted.keys.short,
            samples=len(samples),
            owner=owner_of(sample.prompt.tenant, sample.prompt.weight),
            output_tokens=max(1, min(left, round(self._output_tokens))),
            tpots=self._entrance.wanted.by_worker,
            tpot=seconds_of(admitted.objective) / TPOT_SAFETY_FACTOR,
            pooled=admitted.pooled,
        )

    def forecast(self, choice: Choice) -> Forecast | None:
        """Returns the forecast of a choice's first token by its workers' costs; None if they are unknown."""
        worker = self._workers.get(choice.route.first())
        if choice.ttft is None or worker is None:
            return None
        return Forecast(worker.kind, choice.ttft, choice.seconds, worker.costs.steps)

    def begins(self, request: Request, samples: Sequence[Sample], choice: Choice) -> Attempt:
        """Begins an attempt on a route, and counts its samples there."""
        route, now = choice.route, self._entrance.clock()
        attempt = request.begin(samples, route, now)
        self._entrance.begins(samples, route.decode)
        owner = owner_of(samples[0].prompt.tenant, samples[0].prompt.weight)
        self._entrance.pace.begins(request.id, choice.tokens, owner, now)
        if (forecast := self.forecast(choice)) is not None:
            attempt.forecast, attempt.expected = forecast, self._metrics.predictions.correction.expected(forecast)
        self._metrics.placed("handoff" if route.prefill else "short")
        placed = request.id, attempt.number
        for sample in samples:
            sample.counted = set(route.workers())
        for worker in self._on(route):
            worker.own_sequences += len(samples)
            if worker.epoch == route.first():
                worker.computes(placed, PromptWork(choice.tokens, choice.start, owner))
            else:
                worker.awaits(placed, choice.tokens + choice.start)
            self._expect_blocks(worker, samples[0].admitted.keys.short.get(worker.record.block_tokens, ()))
        return attempt

    def queued(self, request: Request, attempt: Attempt, ticket: Ticket) -> None:
        if (first := self._workers.get(attempt.route.first())) is not None:
            first.queued((request.id, attempt.number), ticket)

    def first_token(self, request: Request, attempt: Attempt, now: float) -> None:
        """Compares the forecast of a request's first attempt with its first token, once."""
        self._entrance.pace.ends(request.id, now, came=True)
        if (worker := self._workers.get(attempt.route.first())) is not None:
            worker.computed((request.id, attempt.number), now)
        if attempt.number == 1 and attempt.forecast is not None:
            before, measured = attempt.begun - request.received, now - request.received
            self._metrics.predictions.learn(attempt.forecast, attempt.expected, before, measured)
        attempt.forecast = None

    def handed_off(self, sample: Sample) -> None:
        self._uncount(sample, {sample.route.prefill}, sample.attempt)
        if sample.attempt is not None and (worker := self._workers.get(sample.route.decode)) is not None:
            worker.settles((sample.key.request, sample.attempt.number))

    def gives_up(self, sample: Sample, attempt: Attempt) -> None:
        """Removes a sample from the workers of an attempt that was given up."""
        self._entrance.ends(sample)
        for worker in self._on(attempt.route):
            worker.settles((sample.key.request, attempt.number))
        self._uncount(sample, sample.counted, None)

    def ends(self, sample: Sample) -> None:
        """Removes a finished sample from its workers, and learns the length of its answer."""
        self._entrance.ends(sample)
        if sample.tokens:
            self._output_tokens += OUTPUT_TOKENS_WEIGHT * (len(sample.tokens) - self._output_tokens)
            self._expect_answer(sample)
        self._uncount(sample, sample.counted, sample.attempt)

    async def standing(self) -> Standing:
        """Describes the workers' standing and their demand, with pauses for other tasks."""
        survey = StandingSurvey(self._workers, self.demand, self._entrance.clock())
        for _ in survey.steps():
            await asyncio.sleep(0)
        return survey.standing(self._entrance.gate.tokens)

    def _expect_blocks(self, worker: Known, keys: Sequence[int]) -> None:
        """Counts blocks as cached by a worker already: prompts that begin with them may follow at once."""
        worker.kept.expects(keys, self._entrance.clock())

    def _expect_answer(self, sample: Sample) -> None:
        """Counts an answer's blocks as cached by its decode worker: its client may continue from it at once."""
        worker, keys = self._workers.get(sample.route.decode), sample.admitted.keys
        if worker is None or sample.length > MAX_HASHED_TOKENS:
            return
        size = worker.record.block_tokens
        if size in keys.last:
            behind = sample.ids(size * len(keys.short[size]), sample.length - 1)  # the last token has no KV
            self._expect_blocks(worker, keys.with_answer(size, behind))

    def _uncount(self, sample: Sample, workers: set[str], attempt: Attempt | None) -> None:
        for epoch in sample.counted & workers:
            if worker := self._workers.get(epoch):
                worker.own_sequences -= 1
                if attempt is not None:
                    worker.settles((sample.key.request, attempt.number))
        sample.counted = sample.counted - workers

    def _on(self, route: Route) -> list[Known]:
        return [worker for epoch in route.workers() if (worker := self._workers.get(epoch)) is not None]
