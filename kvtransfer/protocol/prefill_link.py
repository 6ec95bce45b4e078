"""The prefill side of one link as a pure state machine: all handoffs to one life of a decode worker, and their window.

Up to a thousand handoffs may wait for blocks, so frequent operations do not iterate over all: due times are in a heap,
and the few handoffs beyond OPENING are kept separately.
"""

import heapq
from collections.abc import Iterable

from contracts.errors import IllegalMove
from contracts.kinds import Codec, Transport
from contracts.kv.spec import KVSpec
from contracts.messages.gateway import REASON_SENDER_SILENT, Way
from contracts.messages.handoff import Abort, Accepted, Credit, Grant, Handoff, Layer, Offer, ToPrefill
from infra.config.transfer import TransferConfig
from kvtransfer.events import OpenHandoff, Unpinned
from kvtransfer.protocol.flow import LinkRate, RoundRobin, SendWindow
from kvtransfer.protocol.instructions import Instruction, Joined, Lost
from kvtransfer.protocol.payloads import Payload
from kvtransfer.protocol.prefill_events import LinkSeen, OfHandoff, PayloadTaken, PeerDead, PrefillHandoffEvent
from kvtransfer.protocol.prefill_handoff import REASON_UNANSWERED, PrefillHandoff, PrefillHandoffState, answer_closed


class PrefillLink:
    """Handoffs by number. Closed handoffs stay until none of their frames can be read."""

    def __init__(self, config: TransferConfig, epoch: str, peer_epoch: str, spec: KVSpec, trace: bool = False) -> None:
        self._config = config
        self.ends = (epoch, peer_epoch)  # prefill epoch, decode epoch
        self._spec = spec
        self._trace = trace
        self._turns = RoundRobin()
        self._heard = self._credited = float("-inf")  # times (s) of the peer's last message and last Credit
        self._ticked = self._opened = float("-inf")  # times (s) of the last `tick` and `open`
        self.window = SendWindow()
        self._frame = config.frame
        self.rate = LinkRate(config.window // 2)
        self.transport: Transport | None = None  # of payloads, once the link has a channel
        self.sealed = False
        self.handoffs: dict[int, PrefillHandoff] = {}
        self._past_opening: dict[int, PrefillHandoff] = {}  # handoffs that are not OPENING any more
        self._dues: list[tuple[float, int]] = []  # heap of (time in s, handoff); the handoff is due then or later
        self._due: dict[int, float] = {}  # each handoff's valid entry in the heap
        self.strays = 0  # dropped messages: of another epoch, or without a transition

    def open(self, opened: OpenHandoff, now: float) -> list[Instruction]:
        """Starts a handoff. Raises `IllegalMove` if its number is in use."""
        if opened.handoff in self.handoffs:
            raise IllegalMove(f"handoff {opened.handoff} is open already")
        handoff = PrefillHandoff(self._config, self.ends[0], opened, self._spec, now, self._codec(), self._trace)
        self.handoffs[opened.handoff] = handoff
        self._opened = now
        instructions = handoff.begin(now)
        self._plan(handoff)
        return instructions

    def handle(self, event: OfHandoff, now: float) -> list[Instruction]:
        """Passes an event or message to its handoff.

        Raises `IllegalMove` for an event that the handoff's state does not allow.
        """
        handoff = self.handoffs.get(event.handoff)  # the engine may name an ended handoff, whose `Closed` is on its way
        return [] if handoff is None else self._step(handoff, event, now)

    def _step(self, handoff: PrefillHandoff, event: PrefillHandoffEvent, now: float) -> list[Instruction]:
        before = handoff.dropped
        instructions = handoff.handle(event, now)
        self.strays += handoff.dropped - before
        handoff.watch.sending(handoff.sending(), now)
        if handoff.waits():
            self._turns.join(handoff.number)
        else:
            self._turns.leave(handoff.number)
        if any(isinstance(instruction, Unpinned) for instruction in instructions):
            del self.handoffs[handoff.number]
        self._plan(handoff)
        return instructions

    def _plan(self, handoff: PrefillHandoff) -> None:
        """Updates a handoff's place by state and by due time, after any change."""
        number = handoff.number
        if number not in self.handoffs:
            self._past_opening.pop(number, None)
            self._due.pop(number, None)
            return
        if handoff.state is not PrefillHandoffState.OPENING:
            self._past_opening[number] = handoff
        due = handoff.next_deadline()
        if due is None:
            self._due.pop(number, None)
        elif due < self._due.get(number, float("inf")):  # a later time is found when the heap entry comes up
            self._due[number] = due
            heapq.heappush(self._dues, (due, number))

    def receive(self, message: ToPrefill, now: float) -> list[Instruction]:
        """Handles a message of the peer. A message of another epoch means that the peer's life is over."""
        epoch, peer_epoch = self.ends
        if message.receiver != epoch:
            self.strays += 1
            return []
        if message.sender != peer_epoch:
            self.strays += 1
            return [Lost("peer_restarted")]
        self._heard = now
        if isinstance(message, Credit):
            self._credited = now
            self.window.credit(message.seen, message.limit)
            self.rate.covered(self.window.seen, now)
            sent = [handoff for handoff in self._past_opening.values() if handoff.unseen()]
            return self._to(sent, LinkSeen(self.window.seen), now)
        if isinstance(message, Offer):
            return [Joined(message)]
        if isinstance(message, Grant):
            self.window.credit(0, message.limit)
        if message.handoff in self.handoffs:
            nothing_arrives = self._nothing_arrives(self.handoffs[message.handoff], message)
            instructions = self.handle(message, now)
            return [*instructions, Lost(REASON_UNANSWERED)] if nothing_arrives else instructions
        if not isinstance(message, Grant | Abort):
            self.strays += not isinstance(message, Accepted)
        return answer_closed(message, self.ends)

    def _nothing_arrives(self, handoff: PrefillHandoff, message: Handoff) -> bool:
        """Whether the peer reports silence although this worker streams, and has credited nothing since."""
        missed = isinstance(message, Abort) and message.reason == REASON_SENDER_SILENT
        return missed and handoff.state is PrefillHandoffState.STREAMING and self._credited < handoff.since

    def use_channel(self, capacity: int, frame: int) -> None:
        """Takes the channel's limits: `capacity` bytes may be in flight, payloads have about `frame` bytes."""
        self.window.capacity = capacity
        self._frame = frame

    def next_payload(self) -> tuple[PrefillHandoff, Payload] | None:
        """Returns the next payload with its handoff, if the window is open for it."""
        number = self._turns.first()
        if number is None:
            return None
        handoff = self.handoffs[number]
        payload = handoff.next_payload(self._frame)
        assert payload is not None, "a handoff without payload has no turn"
        return (handoff, payload) if self.window.open_for(payload.size) else None

    def following(self, handoff: PrefillHandoff, payload: Payload) -> tuple[PrefillHandoff, Payload] | None:
        """Returns the payload that will be sent after this one, unless something changes meanwhile."""
        number = self._turns.second()
        if number is not None and number != handoff.number:
            handoff, after = self.handoffs[number], None
        else:
            after = payload
        following = handoff.next_payload(self._frame, after)
        return None if following is None else (handoff, following)

    def header(self, handoff: PrefillHandoff, payload: Payload) -> Layer:
        return handoff.layer(payload, self.window.sent)

    def payload_taken(
        self, handoff: PrefillHandoff, payload: Payload, digest: int | None, now: float
    ) -> list[Instruction]:
        """Counts a sent payload against the window, and gives the next handoff its turn."""
        self.window.send(payload.size)
        self.rate.left(self.window.sent, self.window.sent - self.window.seen, now)
        self._turns.turn()
        taken = PayloadTaken(payload, self.window.sent, digest, self._way(handoff.form.codec))
        return self._step(handoff, taken, now)

    def tick(self, now: float) -> list[Instruction]:
        """Checks deadlines, repeats messages, and detects a silent peer; a pause of this process does not count."""
        if now - self._ticked > self._config.silence / 2:
            self._heard = self._credited = now
        self._ticked = now
        for handoff in self._past_opening.values():
            if reason := handoff.silence_reason(now, self._heard, self._credited):
                return [Lost(reason)]
        due: list[PrefillHandoff] = []
        while (at := self._next_due()) is not None and at <= now:
            _, number = heapq.heappop(self._dues)
            del self._due[number]
            due.append(self.handoffs[number])
        instructions: list[Instruction] = []
        for handoff in due:
            instructions += handoff.tick(now, self.window.sent)
            if not handoff.waits():
                self._turns.leave(handoff.number)
            self._plan(handoff)
        return instructions

    def _next_due(self) -> float | None:
        """Returns when the first handoff is due, with its entry on top of the heap; None without any."""
        while self._dues:
            at, number = self._dues[0]
            if self._due.get(number) != at:  # outdated
                heapq.heappop(self._dues)
                continue
            due = self.handoffs[number].next_deadline()
            if due == at:
                return at
            heapq.heappop(self._dues)
            del self._due[number]
            self._plan(self.handoffs[number])
        return None

    def lost(self, reason: str, now: float) -> list[Instruction]:
        """Ends every handoff: the peer is dead, its socket closed. Frames still report when they are done."""
        return self._to(self.handoffs.values(), PeerDead(reason), now)

    def next_deadline(self) -> float | None:
        """Returns when to call `tick`, often enough to notice our own pauses; None if all is closed."""
        due = self._next_due()
        return None if due is None else min(due, max(self._ticked, self._opened) + self._config.silence / 4)

    def pinned(self) -> bool:
        return any(handoff.state is PrefillHandoffState.CLOSED for handoff in self._past_opening.values())

    def way(self) -> Way | None:
        """Returns how the next handoff's KV would be sent; None without a channel."""
        return self._way(self._codec())

    def _way(self, codec: Codec) -> Way | None:
        return None if self.transport is None else Way(self.transport, self.sealed, codec)

    def _codec(self) -> Codec:
        """Returns the configured codec; with a rate limit for it, "none" unless the link is known to be slower."""
        below = self._config.kv_codec_below
        slow = not below or 0 < self.rate.gigabytes_per_second < below
        return self._config.kv_codec if slow else "none"

    def _to(self, handoffs: Iterable[PrefillHandoff], event: LinkSeen | PeerDead, now: float) -> list[Instruction]:
        return [each for handoff in list(handoffs) for each in self._step(handoff, event, now)]
