"""A simulated gateway: the real router, gate, verdict and samples, between arrivals and simulated workers.

It does for requests what `gateway.requests.dispatch` and `gateway.requests.open_requests` do over sockets.
"""

from collections.abc import Callable, Collection
from functools import partial
from itertools import count, takewhile

from contracts.ids import AttemptKey, SampleKey, Ticket
from contracts.messages.gateway import REASON_NO_ROOM, Emitted, Failed
from contracts.messages.job import AnyJob, Prompt
from contracts.messages.sampling import Limits, Sampling
from contracts.slo import Timings
from gateway.errors import APIError
from gateway.reports.metrics import Metrics
from gateway.reports.predictions import Predicted
from gateway.requests.attempt import RetryBudget
from gateway.requests.entrance import Entrance, Visit
from gateway.requests.load_account import LoadAccount
from gateway.requests.request import Request
from gateway.requests.routing import ROUTE_RETRY_S, RequestRouting
from gateway.requests.sample import AdmittedPrompt, Fate, Sample, State
from gateway.requests.stream import Stream
from gateway.text.detokenizer import BytePieces
from gateway.workers.prompt_keys import prompt_keys
from gateway.workers.standing import StandingSurvey
from infra.config.gateway import GatewayConfig
from pricing.routes.route import Choice
from pricing.scaling.standing import Standing
from simulation.peers import GATEWAY_EPOCH, SimulatedPeer, SimulatedPeers
from simulation.rate_limits import SimulatedLimits
from simulation.request import SimulatedRequest
from simulation.senders import Senders, SimulatedSender
from simulation.timeline import Timeline
from simulation.token_ids import token_ids
from worker.events import AttemptFailure
from workloads.outcome import RequestOutcome
from workloads.request import NextTurn, TimedRequest


class SimulatedGateway:
    """Begins requests, follows their tokens, tries them again, and ends each once."""

    def __init__(
        self,
        timeline: Timeline,
        config: GatewayConfig,
        peers: SimulatedPeers,
        front_s: float,
        senders: Senders,
        cancel: Callable[[str, AttemptKey], None],
    ) -> None:
        """`front_s`: seconds of a message to a worker. `cancel` ends an attempt on a worker."""
        self._timeline = timeline
        self._timeout = config.request_timeout
        self._workers = peers.directory
        self._front_s = front_s
        self._senders = senders
        self._limits = SimulatedLimits(timeline.clock)
        self._cancel = cancel
        self._metrics = Metrics("simulated", self._workers)
        self._entrance = Entrance(config, timeline.clock)
        self._load = LoadAccount(self._workers, self._entrance, self._metrics)
        correction = self._metrics.predictions.correction
        self._routing = RequestRouting(self._workers, self._load, correction, config.handoff == "always")
        self._budget = RetryBudget(config.max_requests, timeline.now)
        self._pieces = BytePieces(chr)
        self._open: dict[str, SimulatedRequest] = {}  # in order of their deadlines
        self._watches = False  # a look at the deadlines is planned
        self._pauses = 0
        self._names = count(1)
        self._tickets = count(1)
        self.ended: Callable[[RequestOutcome], None] = lambda outcome: None
        """Takes each request that has ended."""

    def __len__(self) -> int:
        """Number of requests in progress, and of conversations in a pause."""
        return len(self._open) + self._pauses

    def predicted(self) -> Predicted:
        """Returns how far the newest predictions of first tokens were off."""
        return self._metrics.predictions.summary()

    def standing(self) -> Standing:
        """Returns the standing of the workers that the gateway publishes for an autoscaler."""
        survey = StandingSurvey(self._workers, self._load.demand, self._timeline.now)
        for _ in survey.steps():
            pass
        return survey.standing(self._entrance.gate.tokens)

    # a request's beginning ------------------------------------------------------------------------------------------

    def arrives(self, timed: TimedRequest, sender: SimulatedSender | None = None) -> None:
        """Takes a new request. `sender`: who sent the conversation's earlier turns; None: it is the first turn."""
        now, planned = self._timeline.now, timed.request
        sender = sender or self._senders.draw()
        caller, tenant = sender.caller, sender.caller.tenant
        ids = token_ids(planned.spans)
        prompt = Prompt(
            ids,
            len(ids),
            salt=tenant,
            priority=caller.allowed(None),
            adapter=sender.adapter,
            tenant=tenant,
            weight=caller.weight,
        )
        admitted = AdmittedPrompt(
            prompt,
            Sampling(0),
            Limits(planned.output_tokens),
            keys=prompt_keys(prompt, self._workers.block_sizes()),
            objective=caller.objective,
            promise=caller.promise,
        )
        sample = Sample(SampleKey(f"r{next(self._names)}", 0), admitted, now + self._timeout)
        request = Request([Stream(sample, self._pieces.stream(), now, False, self._metrics)])
        here = SimulatedRequest(timed, sender, request, Visit(self._entrance, request))
        self._open[request.id] = here
        try:
            self._limits.admit(caller, request.id, len(ids) + planned.output_tokens)
        except APIError as error:
            self._end(here, State.FAILED, error.code or "refused")
            return
        self._watch_deadlines()
        self._try(here)

    def _try(self, here: SimulatedRequest) -> None:
        """Begins a request now, or lets it wait at the gate, or refuses it."""
        choice = self._routing.choose([here.sample], (), self._timeline.now)
        if choice is None:
            self._end(here, State.FAILED, "no_workers")
            return
        if not here.counted:
            here.counted = True
            self._load.demand.came(choice, self._timeline.now)
        try:
            if self._routing.may_begin(here.visit, choice):
                self._begin(here, choice)
            else:
                self._wait(here)
        except APIError as error:
            self._end(here, State.FAILED, error.code or "refused")

    def _wait(self, here: SimulatedRequest) -> None:
        now, gate = self._timeline.now, self._entrance.gate
        waiting, until = here.visit.stand(now)
        _, seconds = gate.next_check(waiting)
        here.checks += 1
        self._timeline.after(min(seconds, max(0.0, until - now)), partial(self._check, here, here.checks))

    def _check(self, here: SimulatedRequest, number: int) -> None:
        if number != here.checks or here.sample.ended:
            return
        try:
            here.visit.checked()
        except APIError as error:
            self._end(here, State.FAILED, error.code or "refused")
            return
        self._try(here)

    def _begin(self, here: SimulatedRequest, choice: Choice) -> None:
        now, request = self._timeline.now, here.request
        attempt = self._load.begins(request, [here.sample], choice)
        decode = self._workers.get(choice.route.decode)
        first = self._workers.get(choice.route.first())
        assert decode is not None and first is not None
        job = request.job(attempt, GATEWAY_EPOCH, decode.record.handoff_address, 0.0)
        ticket = Ticket(int(1000 * now), next(self._tickets))
        attempt.add(now, ticket)
        self._load.queued(request, attempt, ticket)
        self._timeline.after(self._front_s, partial(self._deliver, first, job, ticket))

    def _deliver(self, peer: SimulatedPeer, job: AnyJob, ticket: Ticket) -> None:
        if peer.worker.alive:
            peer.worker.take(job, ticket)

    # news of workers ------------------------------------------------------------------------------------------------

    def emitted(self, worker: str, emitted: Emitted) -> None:
        here, now = self._open.get(emitted.key.request), self._timeline.now
        if here is None:
            return
        sample = here.sample
        was = sample.state
        new = sample.emitted(worker, emitted, now)
        if new is None:
            return
        if new.token_ids:
            self._count(here, len(new.token_ids), now)
        if sample.state is not was and sample.state is State.DECODE:
            self._load.handed_off(sample)
        if new.finish is not None:
            self._end(here, State.FINISHED, new.finish)

    def _count(self, here: SimulatedRequest, tokens: int, now: float) -> None:
        if not here.first_s:
            here.first_s = here.last_s = now
        else:
            here.gaps_ms += [1000 * (now - here.last_s) / tokens] * tokens
            here.last_s = now
        attempt = here.sample.attempt
        if attempt is not None and attempt.forecast is not None:
            self._load.first_token(here.request, attempt, now)

    def failed(self, worker: str, key: AttemptKey, failure: AttemptFailure) -> None:
        here = self._open.get(key.request)
        if here is None:
            return
        message = Failed(
            sender=worker, receiver=GATEWAY_EPOCH, key=key, reason=failure.reason, retryable=failure.retryable
        )
        match here.sample.failed(worker, message, self._timeline.now):
            case Fate.RETRY:
                self._retry(here, failure.reason)
            case Fate.FAIL:
                self._end(here, State.FAILED, failure.reason)

    def died(self, peer: SimulatedPeer) -> None:
        """Forgets a dead worker, and tries its requests again on others."""
        peer.usable = False
        self._workers.remove(peer)
        for here in list(self._open.values()):
            if here.sample.lost(peer.epoch):
                self._retry(here, "worker died")

    # attempts and ends ----------------------------------------------------------------------------------------------

    def _retry(self, here: SimulatedRequest, reason: str) -> None:
        sample = here.sample
        avoid = sample.attempt.route.workers() if sample.attempt is not None else ()
        self._give_up(here)
        pause = 0.0 if reason == REASON_NO_ROOM else sample.moves_on(reason)
        if pause is None and (not sample.may_retry() or not self._budget.take(self._timeline.now)):
            self._end(here, State.FAILED, "retries_failed")
            return
        self._timeline.after(pause or 0.0, partial(self._place, here, avoid))

    def _give_up(self, here: SimulatedRequest) -> None:
        attempt = here.sample.abandon()
        if attempt is not None:
            self._load.gives_up(here.sample, attempt)
            for epoch in attempt.route.workers():
                self._cancel(epoch, AttemptKey(here.request.id, here.sample.key.sample, attempt.number))

    def _place(self, here: SimulatedRequest, avoid: Collection[str]) -> None:
        if here.sample.ended:
            return
        choice = self._routing.choose([here.sample], avoid, self._timeline.now)
        if choice is not None:
            self._begin(here, choice)
        else:
            self._timeline.after(ROUTE_RETRY_S, partial(self._place, here, avoid))

    def _watch_deadlines(self) -> None:
        """Plans a look at the deadlines for the time of the next one, which is the oldest request's.

        All requests have the same time limit. An action for each request would keep ended requests in memory until
        their deadlines.
        """
        if not self._watches and self._open:
            self._watches = True
            self._timeline.at(next(iter(self._open.values())).sample.deadline, self._end_late)

    def _end_late(self) -> None:
        now = self._timeline.now
        self._watches = False
        for here in list(takewhile(lambda each: each.sample.deadline <= now, self._open.values())):
            self._give_up(here)
            self._end(here, State.FAILED, "timeout")
        self._watch_deadlines()

    def _end(self, here: SimulatedRequest, state: State, reason: str) -> None:
        now, sample = self._timeline.now, here.sample
        sample.end(state, reason)
        del self._open[here.request.id]
        self._load.ends(sample)
        self._entrance.leaves(here.request.id)
        self._limits.settle(here.sender.caller, here.request.id, here.request.used)
        timings = None
        if state is State.FINISHED:
            timings = Timings(1000 * (here.first_s - here.due_s), 1000 * (now - here.due_s), len(sample.tokens))
        self.ended(
            RequestOutcome(
                due_s=here.due_s,
                sent_s=here.due_s,
                ended_s=now,
                timings=timings,
                gaps_ms=tuple(here.gaps_ms),
                prompt_tokens=len(sample.prompt.token_ids),
                cached_tokens=sample.stages.cached_tokens,
                error="" if timings is not None else reason,
                sender=here.sender.key_name,
            )
        )
        if timings is not None and here.then is not None:
            self._pauses += 1
            self._timeline.after(here.then.pause_s, partial(self._goes_on, here.then, here.sender))
        self._wake_head()

    def _goes_on(self, turn: NextTurn, sender: SimulatedSender) -> None:
        self._pauses -= 1
        self.arrives(TimedRequest(self._timeline.now, turn.request), sender)

    def _wake_head(self) -> None:
        """Checks the head of the gate's line now, since there may be room for it."""
        head = self._entrance.head()
        here = self._open.get(head) if head else None
        if here is not None:
            here.checks += 1
            self._timeline.after(0.0, partial(self._check, here, here.checks))
