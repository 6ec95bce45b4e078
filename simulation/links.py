"""Handoffs between simulated workers: the protocol's real state machines, over links with a rate and a round trip.

A payload occupies its link for its bytes over the rate and arrives half a round trip later; a message takes half a
round trip. Payloads leave while the link's window is open, so a long link with a small window is slow, as it really is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from contracts.messages.handoff import Layer, ToPrefill
from contracts.messages.job import PrefillJob
from infra.config.transfer import TransferConfig
from infra.redis.records import KVLink
from kvtransfer.events import (
    BlocksTaken,
    BlocksWanted,
    CancelAttempt,
    Closed,
    Dropped,
    FromDecode,
    FromPrefill,
    Landed,
    OpenHandoff,
    Unpinned,
)
from kvtransfer.protocol.decode_links import DecodeLinks, FromSender
from kvtransfer.protocol.flow import MAX_LINK_OFFSET, HandoffRate
from kvtransfer.protocol.instructions import Instruction, Land, Lost, Send
from kvtransfer.protocol.prefill_events import FrameDone
from kvtransfer.protocol.prefill_link import PrefillLink
from simulation.deployment import LinkFigures
from simulation.timeline import Timeline
from simulation.worker import SimulatedWorker

NO_DIGEST = 0
"""Simulated payloads have no bytes, so both ends agree on their digest."""


class DecodeEnd:
    """A decode worker's end of all its links."""

    def __init__(
        self, timeline: Timeline, worker: SimulatedWorker, config: TransferConfig, figures: LinkFigures
    ) -> None:
        self.worker = worker
        self.links: dict[bytes, PrefillEnd] = {}
        self._timeline = timeline
        self._half_trip_s = figures.round_trip_s / 2
        self._look_s = config.silence / 4
        self._side = DecodeLinks(config, worker.epoch, worker.spec)
        self._looks = False

    def handle(self, event: FromDecode) -> None:
        self._carry_out(self._side.handle(event, self._timeline.now))

    def receive(self, link: bytes, message: FromSender, size: int = 0) -> None:
        if not self.worker.alive:
            return
        now = self._timeline.now
        for instruction in self._side.receive(link, message, size, now):
            if isinstance(instruction, Land):
                self._carry_out(self._side.landed(instruction, NO_DIGEST, now))
            else:
                self._carry_out([instruction])
        self._carry_out(self._side.credits())

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(message, link):
                    assert isinstance(message, ToPrefill)
                    answer = partial(self.links[link].receive, message)
                    self._timeline.after(self._half_trip_s, answer)
                case BlocksWanted() | Landed() | Dropped():
                    self.worker.post(instruction)
                case _:
                    raise AssertionError(f"{type(instruction).__name__} is not for the decode side")
        if self._side.handoffs and not self._looks:
            self._looks = True
            self._timeline.after(self._look_s, self._look)

    def _look(self) -> None:
        self._looks = False
        if self.worker.alive:
            self._carry_out(self._side.tick(self._timeline.now))


class PrefillEnd:
    """A prefill worker's end of its link to one decode worker."""

    def __init__(
        self,
        timeline: Timeline,
        worker: SimulatedWorker,
        peer: DecodeEnd,
        config: TransferConfig,
        figures: LinkFigures,
        forget: Callable[[str, int], None],
    ) -> None:
        """`forget` is told of each handoff that is over, by prefill epoch and number."""
        self.worker = worker
        self._forget = forget
        self.rate = HandoffRate()
        self._timeline = timeline
        self._peer = peer
        self._figures = figures
        self._name = worker.epoch.encode()
        self._side = PrefillLink(config, worker.epoch, peer.worker.epoch, worker.spec)
        self._side.use_channel(MAX_LINK_OFFSET, config.frame)
        self._side.transport = "tcp"
        self._free_at = 0.0  # s, when the link has taken all payloads sent so far
        self._looks_at = float("inf")  # s, of the next look at deadlines
        peer.links[self._name] = self

    def open(self, opened: OpenHandoff) -> None:
        self._carry_out(self._side.open(opened, self._timeline.now))

    def handle(self, event: Any) -> None:
        self._carry_out(self._side.handle(event, self._timeline.now))

    def receive(self, message: ToPrefill) -> None:
        if self.worker.alive:
            self._carry_out(self._side.receive(message, self._timeline.now))

    def lose(self, reason: str) -> None:
        """Ends every handoff. Payloads under way are lost with the channel, so their blocks are no longer read."""
        self._carry_out(self._lost(reason))

    def _lost(self, reason: str) -> list[Instruction]:
        now, side = self._timeline.now, self._side
        instructions = side.lost(reason, now)
        for sender in list(side.handoffs.values()):
            for payload in list(sender.sent.flying):
                instructions += side.handle(FrameDone(sender.number, payload), now)
        return instructions

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        self._follow(instructions)
        self._send_payloads()
        due = self._side.next_deadline()
        if due is not None and due < self._looks_at:
            self._looks_at = due
            self._timeline.at(due, self._look)

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(message):
                    assert isinstance(message, FromSender)
                    receive = partial(self._peer.receive, self._name, message)
                    self._timeline.after(self._figures.round_trip_s / 2, receive)
                case Closed() | Unpinned():
                    if isinstance(instruction, Closed) and instruction.outcome == "accepted":
                        self.rate.passed(instruction.bytes, instruction.times.send_ms / 1000)
                    self.worker.post(instruction)
                    if isinstance(instruction, Unpinned):
                        self._forget(self.worker.epoch, instruction.handoff)
                case Lost(reason):
                    self._follow(self._lost(reason))
                case _:
                    raise AssertionError(f"{type(instruction).__name__} is not for the prefill side")

    def _send_payloads(self) -> None:
        now, figures = self._timeline.now, self._figures
        while (turn := self._side.next_payload()) is not None:
            sender, payload = turn
            header: Layer = self._side.header(sender, payload)
            self._free_at = max(now, self._free_at) + payload.size / figures.bytes_per_second
            arrive = partial(self._peer.receive, self._name, header, payload.size)
            self._timeline.at(self._free_at + figures.round_trip_s / 2, arrive)
            self._follow(self._side.payload_taken(sender, payload, NO_DIGEST, now))

    def _look(self) -> None:
        if not self.worker.alive or self._timeline.now < self._looks_at:
            return
        self._looks_at = float("inf")
        self._carry_out(self._side.tick(self._timeline.now))


class SimulatedLinks:
    """All links of a deployment: passes what engines post about handoffs to their ends."""

    def __init__(self, timeline: Timeline, config: TransferConfig, figures: LinkFigures) -> None:
        self._timeline = timeline
        self._config = config
        self._figures = figures
        self._decodes: dict[str, DecodeEnd] = {}
        self._links: dict[str, dict[str, PrefillEnd]] = {}  # by prefill, then by decode epoch
        self._handoffs: dict[tuple[str, int], PrefillEnd] = {}  # by prefill epoch and number

    def add(self, worker: SimulatedWorker) -> None:
        if worker.role == "decode":
            self._decodes[worker.epoch] = DecodeEnd(self._timeline, worker, self._config, self._figures)

    def from_prefill(self, worker: SimulatedWorker, event: FromPrefill) -> None:
        match event:
            case OpenHandoff(handoff=handoff, job=PrefillJob(decode_epoch=peer)):
                link = self._link(worker, peer)
                self._handoffs[worker.epoch, handoff] = link
                link.open(event)
            case BlocksTaken() | CancelAttempt():
                pass  # simulated pools have no windows, and the engine aborts the handoffs of killed attempts
            case _:
                known = self._handoffs.get((worker.epoch, event.handoff))
                if known is not None:  # the engine may name a handoff that is over
                    known.handle(event)

    def from_decode(self, worker: SimulatedWorker, event: FromDecode) -> None:
        self._decodes[worker.epoch].handle(event)

    def links_of(self, worker: SimulatedWorker) -> list[KVLink]:
        """Lists the links of a prefill worker with their measured rates."""
        own = self._links.get(worker.epoch, {})
        return [KVLink(decode, "tcp", False, "none", link.rate.bytes_per_second) for decode, link in own.items()]

    def died(self, worker: SimulatedWorker) -> None:
        """Ends the handoffs to a dead decode worker; a dead prefill worker is noticed by its silence."""
        for own in list(self._links.values()):
            if (link := own.get(worker.epoch)) is not None and link.worker.alive:
                link.lose("connection_lost")

    def _link(self, worker: SimulatedWorker, peer: str) -> PrefillEnd:
        own = self._links.setdefault(worker.epoch, {})
        if peer not in own:
            own[peer] = PrefillEnd(self._timeline, worker, self._decodes[peer], self._config, self._figures, self._over)
        return own[peer]

    def _over(self, prefill: str, handoff: int) -> None:
        del self._handoffs[prefill, handoff]
