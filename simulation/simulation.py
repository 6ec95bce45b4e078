"""Runs a workload over a simulated deployment, and returns what its clients would see."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from msgspec import Struct, structs

from contracts.messages.gateway import Failed, News, Tokens
from gateway.heap import rare_collections
from gateway.workers.liveness import RECONNECT_WITHIN_S
from infra.redis.records import Role
from simulation.deployment import SimulatedDeployment
from simulation.fleet import SimulatedFleet
from simulation.gateway import SimulatedGateway
from simulation.peers import GATEWAY_EPOCH
from simulation.scaling import FleetScaling, SimulatedScaling
from simulation.senders import Senders
from simulation.timeline import Timeline
from simulation.worker import SimulatedWorker
from worker.events import Begin, Emit, Fail, KeysChanged, Phase
from workloads.outcome import RequestOutcome
from workloads.request import TimedRequest

SETTLE_S = 60.0
"""Longest time behind the last answer for handoffs and pins to end."""
GC_THRESHOLD_OBJECTS = 1_000_000
"""New objects between two collections: only requests that the limits of a key refuse leave garbage in circles."""


class SimulatedDeath(Struct, frozen=True):
    """A worker that dies at a time, s since the start; its gateway notices that its connection has ended."""

    worker: str
    at_s: float


class DeploymentSimulation:
    """A deployment in simulated time."""

    def __init__(self, deployment: SimulatedDeployment) -> None:
        self.timeline = Timeline()
        self.fleet = SimulatedFleet(self.timeline, deployment, self)
        self._deployment = deployment
        senders = Senders(deployment.keys, deployment.device.adapters.names, deployment.objective)
        self.gateway = SimulatedGateway(
            self.timeline, deployment.gateway, self.fleet.peers, deployment.front_s, senders
        )
        self._coming: Iterator[TimedRequest] = iter(())
        self._all_came = True
        self.scaling: FleetScaling | None = None
        roles: tuple[tuple[Role, int], ...] = (("prefill", deployment.prefill), ("decode", deployment.decode))
        for role, number in roles:
            for _ in range(number):
                self.fleet.add(role, paid_from=0.0)

    def run(
        self,
        requests: Iterable[TimedRequest],
        deaths: Iterable[SimulatedDeath] = (),
        scaling: SimulatedScaling | None = None,
    ) -> list[RequestOutcome]:
        """Runs until every request has ended and every worker is idle; returns the outcomes in order of arrival."""
        outcomes = list[RequestOutcome]()
        self.play(requests, outcomes.append, deaths, scaling)
        return sorted(outcomes, key=lambda each: each.due_s)

    def play(
        self,
        requests: Iterable[TimedRequest],
        ended: Callable[[RequestOutcome], None],
        deaths: Iterable[SimulatedDeath] = (),
        scaling: SimulatedScaling | None = None,
    ) -> None:
        """Does what `run` does, hands each outcome on when its request ends, and keeps none.

        The requests come in order of their times; each is asked for when the one before it has arrived.
        """
        timeline = self.timeline
        self.gateway.ended = ended
        self._coming, self._all_came = iter(requests), False
        self._next_arrival()
        for death in deaths:
            timeline.at(death.at_s, partial(self._dies, death.worker))
        if scaling is not None:
            self.scaling = FleetScaling(timeline, self.fleet, scaling, self.gateway.standing)
        with rare_collections(GC_THRESHOLD_OBJECTS), self.gateway.loop.running():
            timeline.run(lambda: self._all_came and not len(self.gateway))
            last = timeline.now + SETTLE_S
            timeline.run(lambda: timeline.now > last or not any(each.busy() for each in self.fleet.living()))

    def check_conservation(self) -> None:
        """Raises AssertionError unless all living workers are idle, and all their blocks are free or cached."""
        for worker in self.fleet.living():
            assert not worker.busy(), f"{worker.epoch} still has work"
            worker.scheduler.check_invariants()
            assert worker.blocks.used_count == 0, f"{worker.epoch} holds {worker.blocks.used_count} blocks"

    def _next_arrival(self) -> None:
        request = next(self._coming, None)
        if request is None:
            self._all_came = True
        else:
            self.timeline.first_at(request.due_s, partial(self._arrives, request))

    def _arrives(self, request: TimedRequest) -> None:
        self._next_arrival()
        self.gateway.arrives(request)

    def _dies(self, epoch: str) -> None:
        if not self.fleet.workers[epoch].alive:
            return  # it has left the deployment before
        peer = self.fleet.die(epoch)
        self.timeline.after(RECONNECT_WITHIN_S, partial(self.gateway.died, peer))

    def _tell_gateway(self, worker: SimulatedWorker, news: Callable[..., News], **said: Any) -> None:
        peer = self.fleet.peers.directory.get(worker.epoch)
        assert peer is not None, "the gateway knows living workers"
        told = news(sender=worker.epoch, receiver=GATEWAY_EPOCH, **said)
        self.timeline.after(self._deployment.front_s, partial(self.gateway.requests.received, peer, told))

    def posted(self, worker: SimulatedWorker, event: Any) -> None:
        """Carries an event of a worker's engine to the gateway, or to the other end of a handoff."""
        match event:
            case Emit(emitted=all_emitted):
                self._tell_gateway(worker, Tokens, emitted=all_emitted)
            case Begin(emitted=emitted):
                self._tell_gateway(worker, Tokens, emitted=[emitted])
            case Fail(key=key, failure=failure):
                self._tell_gateway(worker, Failed, key=key, **structs.asdict(failure))
            case KeysChanged(kept=kept, lost=lost):
                worker.keys.change(kept, lost)
                self.fleet.peers.keys_changed(worker.epoch)
            case Phase():
                pass  # for gateways that ask about a silent sequence; a simulated gateway never does
            case _ if worker.role == "prefill":
                self.fleet.links.from_prefill(worker, event)
            case _:
                self.fleet.links.from_decode(worker, event)
