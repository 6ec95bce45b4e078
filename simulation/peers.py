"""A simulated gateway's knowledge of its workers: between pings and heartbeats it grows old, as a real one's does."""

from collections.abc import Callable
from functools import partial

from msgspec import structs

from contracts.ids import AttemptKey, Ticket
from contracts.messages.job import AnyJob
from gateway.workers.directory import WorkerDirectory
from gateway.workers.worker import Placed, Worker
from infra.redis.records import HEARTBEAT_S, Memory, WorkerRecord
from kvtransfer.events import CancelAttempt
from pricing.routes.backlog import Backlog
from pricing.routes.links import HostLocation
from simulation.links import SimulatedLinks
from simulation.pings import PingAnswers
from simulation.timeline import Timeline
from simulation.worker import SimulatedWorker
from worker.events import Kill

GATEWAY_EPOCH = "gateway"


class SimulatedPeer(Worker):
    """The gateway's knowledge of a simulated worker, and the worker itself."""

    def __init__(
        self,
        record: WorkerRecord,
        worker: SimulatedWorker,
        links: SimulatedLinks,
        answers: PingAnswers,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(record)
        self._clock = clock
        self._handoffs = links
        self.worker = worker
        self.usable = self.welcomed = True
        self.answers = answers
        self.keys_are_due = False
        """Whether the ping whose answer tells the worker's changed keys is planned."""

    def take(self, job: AnyJob, ticket: Ticket) -> None:
        if self.worker.alive:
            self.worker.take(job, ticket)

    def cancel(self, key: AttemptKey) -> None:
        if self.worker.alive:
            self.worker.post(Kill(key, "cancelled"))
            if self.worker.role == "decode":
                self._handoffs.from_decode(self.worker, CancelAttempt(key))

    def hear(self, now: float) -> None:
        """Takes the newest answer to a ping. Every method that depends on an answer calls this first."""
        if (answer := self.answers.newest(now)) is not None:
            self.reports(answer.backlog, answer.taken, answer.arrives_at)

    def backlog(self, now: float) -> tuple[Backlog, float]:
        self.hear(now)
        return super().backlog(now)

    def computed(self, placed: Placed, now: float) -> None:
        self.hear(now)
        super().computed(placed, now)

    def settles(self, placed: Placed) -> None:
        self.hear(self._clock())
        super().settles(placed)


class SimulatedPeers:
    """Takes the workers' answers to pings, and their heartbeats; a message takes `front_s` seconds."""

    def __init__(self, timeline: Timeline, links: SimulatedLinks, front_s: float) -> None:
        self.directory: WorkerDirectory[SimulatedPeer] = WorkerDirectory()
        self._timeline = timeline
        self._links = links
        self._front_s = front_s

    def add(self, worker: SimulatedWorker) -> None:
        now = self._timeline.now
        answers = PingAnswers(worker, self._front_s, now)
        worker.before_change = answers.answer
        peer = SimulatedPeer(_record_of(worker), worker, self._links, answers, self._timeline.clock)
        peer.learned_at = now
        self.directory.add(peer)
        self._tell_keys(peer)
        self._beat(peer)

    def keys_changed(self, epoch: str) -> None:
        """Has the next ping's answer tell of the keys that a worker's cache has gained and lost."""
        peer = self.directory.get(epoch)
        if peer is not None and not peer.keys_are_due:
            peer.keys_are_due = True
            self._timeline.at(peer.answers.next_at, partial(self._tell_keys, peer))

    def _tell_keys(self, peer: SimulatedPeer) -> None:
        worker, now = peer.worker, self._timeline.now
        peer.keys_are_due = False
        if not worker.alive:
            return
        worker.keys.heard(GATEWAY_EPOCH, peer.kept.heard, now)
        while (news := worker.keys.owed(GATEWAY_EPOCH)) is not None:
            worker.keys.sent(GATEWAY_EPOCH, news, now)
            self._timeline.after(self._front_s, partial(peer.kept.take, news))

    def _beat(self, peer: SimulatedPeer) -> None:
        if peer.worker.alive:
            self.renew(peer)
            self._timeline.after(HEARTBEAT_S, partial(self._beat, peer))

    def renew(self, peer: SimulatedPeer) -> None:
        """Takes the worker's record as it is now."""
        worker, record, links = peer.worker, peer.record, self._links.links_of(peer.worker)
        load, draining = worker.load(), worker.status.draining
        if load is not record.load or draining != record.draining or links != record.links:
            peer.renew(structs.replace(record, load=load, draining=draining, links=links), self._timeline.now)


def _record_of(worker: SimulatedWorker) -> WorkerRecord:
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
        load=worker.load(),
        draining=worker.status.draining,
        memory=Memory(token_bytes=spec.token_bytes()),
        adapters=device.adapters.held(),
        place=HostLocation(worker.epoch, worker.epoch),
    )
