"""A simulated gateway: the code that serves requests, between arrivals and simulated workers.

Requests begin, wait, fail, are tried again and end by `gateway.requests`; this module has what is around it: where jobs
go, the callers' limits, and what clients see.
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import count, takewhile

from msgspec import structs

from contracts.errors import QueueClosed
from contracts.ids import Ticket
from contracts.messages.job import AnyJob, Prompt
from contracts.messages.sampling import Limits, Sampling
from gateway.errors import APIError
from gateway.keys.caller import Caller
from gateway.keys.limiter import Limiter
from gateway.metrics.gateway_metrics import Metrics
from gateway.metrics.predictions import Predicted
from gateway.requests.dispatch import Dispatch
from gateway.requests.open_requests import OpenRequests
from gateway.requests.request import Request
from gateway.requests.sample import AdmittedPrompt, State
from gateway.workers.prompt_keys import prompt_keys
from gateway.workers.standing import StandingSurvey
from infra.config.gateway import GatewayConfig
from infra.process.tasks import Tasks
from pricing.scaling.standing import Standing
from simulation.event_loop import SimulatedLoop
from simulation.name_digest import name_digest
from simulation.peers import GATEWAY_EPOCH, SimulatedPeer, SimulatedPeers
from simulation.rate_limits import CountsInMemory
from simulation.senders import Senders, SimulatedSender
from simulation.stream import SimulatedStream
from simulation.timeline import Timeline
from simulation.token_ids import token_ids
from workloads.outcome import RequestOutcome
from workloads.request import NextTurn, TimedRequest


class SimulatedGateway:
    """Takes requests and hands their outcomes on; `requests` has those in progress."""

    def __init__(
        self, timeline: Timeline, config: GatewayConfig, peers: SimulatedPeers, front_s: float, senders: Senders
    ) -> None:
        """`front_s`: seconds of a message to a worker."""
        self._timeline = timeline
        self._workers = peers.directory
        self._front_s = front_s
        self._senders = senders
        self._limiter = Limiter(CountsInMemory(), timeline.clock)
        self._metrics = Metrics("simulated", self._workers)
        config = structs.replace(config, link_prompt=sys.maxsize)  # jobs have their prompts
        now = timeline.clock
        self._dispatch = Dispatch(config, GATEWAY_EPOCH, self._add_job, now, self._workers, self._metrics, now)
        stream = partial(SimulatedStream, self._metrics)
        self.requests = OpenRequests(config, self._dispatch, self._metrics, stream, self._ended)
        self.loop = SimulatedLoop(timeline)
        self._tasks = Tasks("simulated requests", self._broken)
        self._watches = False  # a look at the deadlines is planned
        self._asked: dict[str, tuple[SimulatedSender, NextTurn | None]] = {}  # by the request in progress
        self._conversations = 0
        self._names = count(1)
        self._tickets = count(1)
        self.ended: Callable[[RequestOutcome], None] = lambda outcome: None
        """Takes each request that has ended."""

    def __len__(self) -> int:
        """Number of requests in progress, and of conversations in a pause."""
        return self._conversations

    def predicted(self) -> Predicted:
        """Returns how far the newest predictions of first tokens were off."""
        return self._metrics.predictions.summary()

    def standing(self) -> Standing:
        """Returns the standing of the workers that the gateway publishes for an autoscaler."""
        survey = StandingSurvey(self._workers, self._dispatch.load.demand, self._timeline.now)
        for _ in survey.steps():
            pass
        return survey.standing(self._dispatch.entrance.gate.tokens)

    def arrives(self, timed: TimedRequest) -> None:
        """Takes the first request of a conversation."""
        self._conversations += 1
        self._asks(timed, self._senders.draw())

    def died(self, peer: SimulatedPeer) -> None:
        """Forgets a dead worker; its requests are tried again on others."""
        peer.usable = False
        self._workers.remove(peer)
        self.requests.died(peer)

    def _asks(self, timed: TimedRequest, sender: SimulatedSender) -> None:
        planned, caller, ids = timed.request, sender.caller, token_ids(timed.request.spans)
        prompt = Prompt(
            ids,
            len(ids),
            salt=name_digest(caller.tenant),
            priority=caller.allowed(None),
            adapter=sender.adapter,
            tenant=caller.tenant,
            weight=caller.weight,
        )
        admitted = AdmittedPrompt(
            prompt,
            Sampling(0),
            Limits(planned.output_tokens),
            keys=prompt_keys(prompt, self._workers.block_sizes()),
            objective=caller.objective,
            promise=caller.promise,
            reserved=len(ids) + planned.output_tokens,
        )
        request = self.requests.request(admitted, f"r{next(self._names)}", timed.due_s, streaming=False)
        self._asked[request.id] = sender, planned.then
        self._watch_deadlines(request.samples[0].deadline)
        self._tasks.start(self._serve(request, caller))

    async def _serve(self, request: Request, caller: Caller) -> None:
        """Begins a request, or fails it."""
        (sample,) = request.samples
        try:
            await self._limiter.flush()  # what earlier requests have left
            await self._limiter.admit(caller, request.id, sample.admitted.reserved)
            await self.requests.open(request)
        except APIError as error:
            if not sample.ended:  # its key's limits refuse it
                sample.end(State.FAILED, error.code or "refused")
                self._ended(request)

    def _broken(self) -> None:
        """Ends the simulation by a bug."""
        assert self._tasks.error is not None
        raise self._tasks.error

    async def _add_job(self, job: AnyJob) -> Ticket:
        worker = self._workers.get(job.receiver)
        if worker is None:
            raise QueueClosed(f"worker {job.receiver} is gone")
        ticket = Ticket(int(1000 * self._timeline.now), next(self._tickets))
        self._timeline.after(self._front_s, partial(worker.take, job, ticket))
        return ticket

    def _watch_deadlines(self, deadline: float) -> None:
        """Plans a look at the deadlines for the time of the next one, which is the oldest request's.

        All requests have the same time limit. An action for each request would keep ended requests in memory until
        their deadlines.
        """
        if not self._watches:
            self._watches = True
            self._timeline.at(deadline, self._end_late)

    def _end_late(self) -> None:
        self._watches = False
        for stream in list(takewhile(lambda each: each.sample.deadline <= self._timeline.now, self.requests)):
            self.requests.expire(stream)
        if (oldest := next(iter(self.requests), None)) is not None:
            self._watch_deadlines(oldest.sample.deadline)

    def _ended(self, request: Request) -> None:
        (stream,) = request.streams
        assert isinstance(stream, SimulatedStream)
        self._limiter.settle(request.id, request.used)
        sender, then = self._asked.pop(request.id)
        self.ended(stream.outcome(self._timeline.now, sender.key_name))
        if then is not None and stream.sample.state is State.FINISHED:
            self._timeline.after(then.pause_s, partial(self._goes_on, then, sender))
        else:
            self._conversations -= 1

    def _goes_on(self, turn: NextTurn, sender: SimulatedSender) -> None:
        self._asks(TimedRequest(self._timeline.now, turn.request), sender)
