"""The workers of a simulated deployment: how they come, drain, go and die, and for how long each is paid."""

from infra.redis.records import Role
from simulation.deployment import SimulatedDeployment
from simulation.links import SimulatedLinks
from simulation.peers import SimulatedPeer, SimulatedPeers
from simulation.timeline import Timeline
from simulation.worker import SimulatedWorker, WorkerSurroundings


class SimulatedFleet:
    """Prefill workers are called p1, p2, …; decode workers d1, d2, and so on, in the order in which they come."""

    def __init__(self, timeline: Timeline, deployment: SimulatedDeployment, around: WorkerSurroundings) -> None:
        self.workers: dict[str, SimulatedWorker] = {}
        self.links = SimulatedLinks(timeline, deployment.transfer, deployment.link)
        self.peers = SimulatedPeers(timeline, self.links, deployment.front_s)
        self._timeline = timeline
        self._deployment = deployment
        self._around = around
        self._paid_from: dict[str, float] = {}  # time, s, from which each living worker is paid for
        self._paid_s = 0.0  # seconds paid for workers that have gone

    def add(self, role: Role, paid_from: float) -> None:
        """Adds a worker that serves at once."""
        epoch = f"{role[0]}{1 + sum(each.role == role for each in self.workers.values())}"
        device, repeats = self._deployment.device_of(role), self._deployment.repeats
        worker = self.workers[epoch] = SimulatedWorker(self._timeline, epoch, role, device, self._around, repeats)
        self._paid_from[epoch] = paid_from
        self.links.add(worker)
        self.peers.add(worker)

    def living(self, role: Role | None = None) -> list[SimulatedWorker]:
        return [each for each in self.workers.values() if each.alive and role in (None, each.role)]

    def drain(self, epoch: str) -> None:
        """Lets a worker finish its requests, and sends it no new ones."""
        self.workers[epoch].status.draining = True
        self.peers.renew(self._peer(epoch))

    def leave(self, epoch: str) -> bool:
        """Lets a draining worker go if it is idle, and returns whether it has gone."""
        worker = self.workers[epoch]
        if worker.alive and worker.busy():
            return False
        if worker.alive:
            self._end(worker)
            self.peers.directory.remove(self._peer(epoch))
        return True

    def die(self, epoch: str) -> SimulatedPeer:
        """Ends a worker amid its work. Returns the gateway's view of it, since the gateway notices the death later."""
        worker = self.workers[epoch]
        self._end(worker)
        self.links.died(worker)
        return self._peer(epoch)

    def paid_s(self, until: float) -> float:
        """Returns the seconds that all workers together are paid for, until a time."""
        return self._paid_s + sum(until - since for since in self._paid_from.values())

    def _end(self, worker: SimulatedWorker) -> None:
        worker.before_change(self._timeline.now)
        worker.end()
        self._paid_s += self._timeline.now - self._paid_from.pop(worker.epoch)

    def _peer(self, epoch: str) -> SimulatedPeer:
        peer = self.peers.directory.get(epoch)
        assert peer is not None
        return peer
