"""What a simulated gateway knows of its workers: it grows old between pings and heartbeats, as a real one's does."""

from gateway.workers.directory import WorkerDirectory
from gateway.workers.liveness import PING_INTERVAL_S
from gateway.workers.worker import Worker
from infra.redis.records import HEARTBEAT_S, KVLink, Memory, WorkerRecord
from pricing.routes.links import HostLocation
from simulation.links import SimulatedLinks
from simulation.timeline import Timeline
from simulation.worker import SimulatedWorker

GATEWAY_EPOCH = "gateway"


class SimulatedPeer(Worker):
    """The gateway's knowledge of a simulated worker, and the worker itself."""

    def __init__(self, record: WorkerRecord, worker: SimulatedWorker) -> None:
        super().__init__(record)
        self.worker = worker
        self.usable = True


class SimulatedPeers:
    """Pings every worker and takes its heartbeats; a message takes `front_s` seconds."""

    def __init__(self, timeline: Timeline, links: SimulatedLinks, front_s: float) -> None:
        self.directory: WorkerDirectory[SimulatedPeer] = WorkerDirectory()
        self._timeline = timeline
        self._links = links
        self._front_s = front_s

    def add(self, worker: SimulatedWorker) -> None:
        peer = SimulatedPeer(self._record(worker, []), worker)
        peer.learned_at = self._timeline.now
        self.directory.add(peer)
        self._ping(peer)
        self._beat(peer)

    def _ping(self, peer: SimulatedPeer) -> None:
        """Takes the answer to a ping: the worker's backlog, and what has changed in its cache."""
        worker, now = peer.worker, self._timeline.now
        if not worker.alive:
            return
        backlog, taken = worker.backlog(), worker.taken
        worker.keys.heard(GATEWAY_EPOCH, peer.kept.heard, now)
        news = []
        while (each := worker.keys.owed(GATEWAY_EPOCH)) is not None:
            worker.keys.sent(GATEWAY_EPOCH, each, now)
            news.append(each)

        def arrives() -> None:
            peer.reports(backlog, taken, self._timeline.now)
            for each in news:
                peer.kept.take(each)

        self._timeline.after(self._front_s, arrives)
        self._timeline.after(PING_INTERVAL_S, lambda: self._ping(peer))

    def _beat(self, peer: SimulatedPeer) -> None:
        if peer.worker.alive:
            self.renew(peer)
            self._timeline.after(HEARTBEAT_S, lambda: self._beat(peer))

    def renew(self, peer: SimulatedPeer) -> None:
        """Takes the worker's record as it is now."""
        peer.renew(self._record(peer.worker, self._links.links_of(peer.worker)), self._timeline.now)

    def _record(self, worker: SimulatedWorker, links: list[KVLink]) -> WorkerRecord:
        spec, device = worker.spec, worker.device
        return WorkerRecord(
            epoch=worker.epoch,
            role=worker.role,
            address=worker.epoch,
            handoff_address=worker.epoch if worker.role == "decode" else "",
            model="simulated",
            fingerprint=spec.fingerprint(),
            content=spec.content(),
            block_tokens=device.block_tokens,
            max_model_len=device.max_model_len,
            device=device.name,
            dtype=spec.dtype,
            started_at=0.0,
            load=worker.status.load,
            draining=worker.status.draining,
            memory=Memory(token_bytes=spec.token_bytes()),
            links=links,
            adapters=device.adapters.held(),
            place=HostLocation(worker.epoch, worker.epoch),
        )
