"""Answers to pings that are made when the gateway reads them are those of pings that are all simulated."""

import random
from functools import partial

import pytest
from msgspec import structs

from contracts.ids import Ticket
from contracts.slo import Objective
from gateway.workers.liveness import PING_INTERVAL_S
from pricing.routes.backlog import Backlog
from simulation import fleet
from simulation.peers import SimulatedPeer, SimulatedPeers
from simulation.pings import PingAnswer, PingAnswers
from simulation.simulation import DeploymentSimulation, SimulatedDeath
from simulation.worker import SimulatedWorker
from tests.simulation.device import DEVICE, deployment, requests

LOAD_S = 6.0
LOOK_COUNT = 300


class NoAnswers(PingAnswers):
    """Answers nothing by itself."""

    def newest(self, now: float) -> PingAnswer | None:
        return None


class EveryPing(SimulatedPeers):
    """Simulates each ping and each answer as an event."""

    def add(self, worker: SimulatedWorker) -> None:
        super().add(worker)
        peer = self.directory.get(worker.epoch)
        assert peer is not None
        peer.answers = NoAnswers(worker, self._front_s, self._timeline.now)
        self._ping(peer)

    def _ping(self, peer: SimulatedPeer) -> None:
        if peer.worker.alive:
            told = peer.worker.backlog(self._timeline.now), peer.worker.taken
            self._timeline.after(self._front_s, partial(self._answered, peer, *told))
            self._tell_keys(peer)
            self._timeline.after(PING_INTERVAL_S, partial(self._ping, peer))

    def _answered(self, peer: SimulatedPeer, backlog: Backlog, taken: Ticket) -> None:
        peer.reports(backlog, taken, self._timeline.now)

    def keys_changed(self, epoch: str) -> None:
        """Every ping tells of them."""


Known = list[tuple[str, Backlog, float]]
"""What the gateway knows of workers: the backlog and its age, s."""


def looked_at(simulation: DeploymentSimulation, chance: random.Random) -> Known:
    """Has the gateway look at all its workers at some times, and returns a list that takes what it sees."""
    found: Known = []

    def look() -> None:
        now = simulation.timeline.now
        found.extend((peer.epoch, *peer.backlog(now)) for peer in simulation.fleet.peers.directory)

    for _ in range(LOOK_COUNT):
        simulation.timeline.at(chance.uniform(0.0, LOAD_S), look)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_outcomes_are_those_of_every_ping(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    described = structs.replace(
        deployment(chance.choice([0, 1, 2]), chance.choice([1, 2, 3]), repeats=chance.choice([1, 16, 256])),
        device=structs.replace(DEVICE, blocks=chance.choice([400, 2000]), pause_s=chance.choice([0.0, 0.003])),
        front_s=chance.choice([0.0005, 0.02, 0.3]),
        objective=chance.choice([Objective(), Objective(ttft_ms=900.0, tpot_ms=60.0)]),
    )
    coming = requests(chance.uniform(4.0, 12.0), LOAD_S, seed, shared=chance.choice([0, 300]))
    deaths = [SimulatedDeath("d1", 3.3)] if described.decode > 1 and chance.random() < 0.5 else []
    asked, asking = DeploymentSimulation(described), random.Random(seed)
    known, outcomes = looked_at(asked, asking), asked.run(coming, deaths)
    monkeypatch.setattr(fleet, "SimulatedPeers", EveryPing)
    pinged, pinging = DeploymentSimulation(described), random.Random(seed)
    known_of_every_ping = looked_at(pinged, pinging)
    assert outcomes == pinged.run(coming, deaths)
    assert known == known_of_every_ping and len(known) >= LOOK_COUNT
