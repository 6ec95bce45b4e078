"""All links and handoffs of a decode worker as a pure state machine, with a bounded memory of ended handoffs."""

import re
from collections import OrderedDict
from typing import Any

from msgspec import Struct

from contracts.ids import AttemptKey, SampleKey
from contracts.kv.spec import VALUE_BYTES, KVSpec
from contracts.messages.gateway import REASON_CROWDED, REASON_DRAINING
from contracts.messages.handoff import Abort, Aborted, Accepted, Commit, Credit, Handoff, Layer, Open, Refused, Remind
from contracts.messages.packed_ids import ID_BYTES
from contracts.messages.wire import VERSION
from infra.config.transfer import TransferConfig
from kvtransfer.events import CancelAttempt, FromDecode, HandoffOver
from kvtransfer.handoff import HandoffKey
from kvtransfer.protocol.decode_events import (
    DecodeHandoffEvent,
    LayerArrived,
    OfLink,
    PayloadLanded,
    SenderDead,
    WriterCame,
    WriterGone,
)
from kvtransfer.protocol.decode_handoff import DecodeHandoff, DecodeHandoffState
from kvtransfer.protocol.flow import ReceiveWindow
from kvtransfer.protocol.instructions import Instruction, Land, Send
from kvtransfer.protocol.ttl_map import TTLMap

MAX_REMAINING_MS = 1e12  # limit of a request's remaining time
MAX_LINKS = 1024
DIGEST_PATTERN = re.compile(r"(?:[0-9a-f]{32})?")  # of a salt or an adapter; empty without a tenant, or an adapter
FromSender = Open | Remind | Layer | Commit | Abort | Aborted


class Ending(Struct, frozen=True):
    """The end of a handoff."""

    owned: bool  # whether it was accepted
    abort_sent: bool  # whether Abort was sent


class LinkState:
    """State shared by all handoffs of a link."""

    __slots__ = ("heard", "sender", "window")

    def __init__(self, window: ReceiveWindow, sender: str) -> None:
        self.window = window
        self.sender = sender  # epoch
        self.heard = 0.0  # time of its last message, s


class DecodeLinks:
    """Handoffs by key. An ended handoff is remembered, with two flags, for a time."""

    def __init__(self, config: TransferConfig, epoch: str, spec: KVSpec, trace: bool = False) -> None:
        self._config = config
        self._epoch = epoch
        self._spec = spec
        self._fingerprint = spec.fingerprint()
        self._trace = trace
        self._draining = False
        self._ticked = 0.0
        self._links: OrderedDict[bytes, LinkState] = OrderedDict()  # in order of their last messages
        self._moved: dict[bytes, None] = {}  # links due for a Credit
        self._by_sample: dict[SampleKey, HandoffKey] = {}  # the live handoffs
        self._ended: TTLMap[HandoffKey, Ending] = TTLMap(config.remember)
        self._dead: TTLMap[SampleKey, int] = TTLMap(config.remember)  # highest attempt that was cancelled or superseded
        self.handoffs: dict[HandoffKey, DecodeHandoff] = {}
        self._writers: set[bytes] = set()  # links whose senders may write into the pool
        self.strays = 0  # dropped messages: for another epoch or link, or without a transition

    def receive(self, link: bytes, message: FromSender, size: int, now: float) -> list[Instruction]:
        """Handles a prefill worker's message; `size` is the size in bytes of a Layer's payload."""
        known = self._heard(link, message.sender, now)
        if isinstance(message, Layer) and known.window.saw(message.offset, max(0, message.size)):
            self._moved[link] = None
        key = HandoffKey(message.sender, message.handoff)
        handoff = self.handoffs.get(key)
        if message.receiver != self._epoch:  # a message for an earlier life at this address
            self.strays += 1
            return self._answer_unknown(link, key, message, now)
        if handoff is None:
            if isinstance(message, Open):
                return self._open(link, key, message, now)
            return self._answer_unknown(link, key, message, now)
        if link != handoff.link:  # a handoff lives and dies with its link
            self.strays += 1
            return []
        event = LayerArrived(message, size) if isinstance(message, Layer) else message
        return self._step(handoff, event, now)

    def handle(self, event: FromDecode, now: float) -> list[Instruction]:
        """Passes an engine event to its handoff. An event of an ended handoff is ignored: a `Dropped` is on its way.

        Raises `IllegalMove` for an event that the handoff's state does not allow.
        """
        if isinstance(event, CancelAttempt):
            return self.cancel(event.key, now)
        handoff = self.handoffs.get(event.key)
        return [] if handoff is None else self._step(handoff, event, now)

    def landed(self, land: Land, digest: int, now: float) -> list[Instruction]:
        """Reports that a `Land` was carried out, with the payload's digest."""
        handoff = self.handoffs.get(land.key)
        return [] if handoff is None else self._step(handoff, PayloadLanded(land.header, digest), now)

    def unjoined(self, link: bytes, header: Layer) -> Send:
        """Answers a payload whose link has no session: its handoff is over, and its sender should join."""
        self.strays += 1
        return Send(Abort(sender=self._epoch, receiver=header.sender, handoff=header.handoff, reason="unjoined"), link)

    def cut_off(self, link: bytes, reason: str, now: float) -> list[Instruction]:
        """Ends a link's handoffs, except for accepted ones, since the link is not read any more."""
        gone = [
            each for each in self.handoffs.values() if each.link == link and each.state is not DecodeHandoffState.OWNED
        ]
        return [instruction for handoff in gone for instruction in self._step(handoff, SenderDead(reason), now)]

    def writer_came(self, link: bytes, now: float) -> list[Instruction]:
        """Records that a link's sender may write into granted blocks, and sends it their numbers."""
        self._writers.add(link)
        return self._to_link(link, WriterCame(), now)

    def writer_gone(self, link: bytes, now: float) -> list[Instruction]:
        """Ends the quarantine of a link's blocks: its sender cannot write any more."""
        self._writers.discard(link)
        return self._to_link(link, WriterGone(), now)

    def _to_link(self, link: bytes, event: OfLink, now: float) -> list[Instruction]:
        found = [each for each in self.handoffs.values() if each.link == link]
        return [instruction for handoff in found for instruction in self._step(handoff, event, now)]

    def cancel(self, dead: AttemptKey, now: float, reason: str = "cancelled") -> list[Instruction]:
        """Marks a sample's attempts up to this one as dead, even if their Open has not arrived yet.

        A handoff ends when all its samples are dead. Until then it goes on for the others.
        """
        highest = self._dead.get(dead.of, now)
        self._dead.put(dead.of, dead.attempt if highest is None else max(dead.attempt, highest), now)
        handoff = self._of_sample(dead.of)
        if handoff is None or handoff.open.attempt > dead.attempt or self._living(handoff.open, now):
            return []
        return self._step(handoff, HandoffOver(handoff.key, reason), now)

    def knows(self, key: AttemptKey) -> bool:
        """Whether a handoff of this attempt waits, lands, or has landed here."""
        handoff = self._of_sample(key.of)
        return (
            handoff is not None
            and handoff.open.attempt == key.attempt
            and handoff.state not in (DecodeHandoffState.QUARANTINED, DecodeHandoffState.ENDED)
        )

    def drain(self) -> None:
        """Refuses new handoffs from now on. Open handoffs go on."""
        self._draining = True

    def tick(self, now: float) -> list[Instruction]:
        """Checks deadlines, and forgets old state. A pause of this process does not count as silence of senders."""
        instructions: list[Instruction] = []
        paused, self._ticked = now - self._ticked > self._config.silence / 2, now
        for key, handoff in list(self.handoffs.items()):
            if paused:
                handoff.heard = now
            elif (known := self._links.get(handoff.link)) is not None:
                # its messages may be queued behind messages of another handoff
                handoff.heard = max(handoff.heard, known.heard)
            instructions += handoff.tick(now)
            if handoff.state is DecodeHandoffState.OWNED and now >= handoff.deadline + self._config.silence:
                handoff.handle(HandoffOver(key), now)
            self._settle(handoff, now)
        self._ended.forget_old(now)
        self._dead.forget_old(now)
        while self._links and next(iter(self._links.values())).heard <= now - self._config.remember:
            self._links.popitem(last=False)
        return instructions

    def credits(self) -> list[Send]:
        """Returns one Credit for every link that has moved since the last call."""
        moved, self._moved = self._moved, {}
        return [Send(self._credit(known), link) for link in moved if (known := self._links.get(link)) is not None]

    def _credit(self, link: LinkState) -> Credit:
        return Credit(sender=self._epoch, receiver=link.sender, seen=link.window.seen, limit=link.window.limit)

    def next_deadline(self) -> float | None:
        """Returns when to call `tick`, often enough to notice our own pauses; None if no handoff waits."""
        dues = [due for handoff in self.handoffs.values() if (due := handoff.next_deadline()) is not None]
        return min(*dues, self._ticked + self._config.silence / 4) if dues else None

    def _step(self, handoff: DecodeHandoff, event: DecodeHandoffEvent, now: float) -> list[Instruction]:
        before = handoff.dropped
        instructions = handoff.handle(event, now)
        self.strays += handoff.dropped - before
        self._settle(handoff, now)
        return instructions

    def _open(self, link: bytes, key: HandoffKey, message: Open, now: float) -> list[Instruction]:
        ending = self._ended.get(key, now)
        if ending is not None and ending.owned:
            self.strays += 1  # a late repetition
            return []
        reason, text, retryable = self._obstacle(key, message, now)
        if reason:
            return [Send(Refused(**self._envelope(key), reason=reason, message=text, retryable=retryable), link)]
        instructions: list[Instruction] = []
        living = self._living(message, now)
        if message.attempt > 0:  # the higher attempt kills the lower
            for each in living:
                instructions += self.cancel(each._replace(attempt=each.attempt - 1), now, "superseded")
        handoff = DecodeHandoff(self._config, key, message, self._spec, now, self._trace)
        handoff.link, handoff.window = link, self._heard(link, message.sender, now).window
        handoff.sender_writes = link in self._writers
        self.handoffs[key] = handoff
        self._by_sample |= {each.of: key for each in living}
        return instructions + handoff.begin(tuple(each.sample for each in living))

    def _obstacle(self, key: HandoffKey, message: Open, now: float) -> tuple[str, str, bool]:
        """Returns why an Open is refused (stable reason, message, retryable); reason "" if it is accepted."""
        living = self._living(message, now)
        if message.version != VERSION:
            return "version", f"protocol version {message.version} here meets version {VERSION}", False
        theirs = self._spec.in_form(message.form)
        if theirs is None or theirs.fingerprint() != message.fingerprint:
            both = (message.fingerprint, message.form), (self._fingerprint, self._spec.form())
            their_kv, our_kv = (f"{name} ({form.described()})" for name, form in both)
            return "misfit", f"KV layout {their_kv} does not fit {our_kv}", False
        if message.form.codec != "none" and theirs.dtype not in VALUE_BYTES:
            return "misfit", f"KV of {theirs.dtype} has no codec {message.form.codec}", False
        if message.prompt.token_ids or len(message.ids) % ID_BYTES:
            return "bad_open", f"a prompt's ids are packed, {ID_BYTES} bytes each", False
        if not message.samples or not message.ids or not 0 <= message.remaining_ms < MAX_REMAINING_MS:
            return "bad_open", "a handoff has at least one sample, one token, and a time that it may take", False
        if len(set(message.samples)) < len(message.samples):
            return "bad_open", "a handoff has each of its samples once", False
        if not all(DIGEST_PATTERN.fullmatch(name) for name in (message.prompt.salt, message.prompt.adapter)):
            return "bad_open", "a salt and an adapter are each 32 lower-case hexadecimal digits, or empty", False
        if self._ended.get(key, now) is not None:
            return "ended", f"handoff {key.handoff} is over here", True
        if not living:
            return "cancelled", f"attempt {message.attempt} was cancelled, or a higher one was seen", False
        for each in living:
            live = self._of_sample(each.of)
            if live is not None and live.open.attempt == message.attempt:
                return "duplicate", f"attempt {message.attempt} is being handed off already", True
        if (
            sum(each.state is DecodeHandoffState.WAITING for each in self.handoffs.values())
            >= self._config.grants_waiting
        ):
            return REASON_CROWDED, f"{self._config.grants_waiting} handoffs wait for room here already", True
        if self._draining:
            return REASON_DRAINING, "this worker takes no new work", True
        return "", "", True

    def _answer_unknown(self, link: bytes, key: HandoffKey, message: Handoff, now: float) -> list[Instruction]:
        """Answers a message of an ended or unknown handoff, so that its sender learns the state."""
        ending = self._ended.get(key, now) or Ending(False, False)
        head = self._envelope(key)
        abort = Send(Abort(**head, reason="ended"), link)
        match message:
            case Open() | Remind() if message.receiver != self._epoch:  # the epoch in the answer shows the restart
                return [Send(Refused(**head, reason="stale", message="this worker has started anew"), link)]
            case Remind() if ending.owned:
                self.strays += 1  # a late repetition
                return []
            case Commit() | Abort() if ending.owned:
                return [Send(Accepted(**head), link)]
            case Commit() | Remind():
                return [abort]
            case Abort():
                self._ended.put(key, ending, now)  # an Open that comes later is refused
                return [Send(Aborted(**head), link)]
            case Layer():
                self.strays += 1
                once = not ending.abort_sent or message.count == 0  # probes are rare, and need an answer
                self._ended.put(key, Ending(ending.owned, True), now)
                return [abort] if once and not ending.owned else []
            case _:
                return []

    def _heard(self, link: bytes, sender: str, now: float) -> LinkState:
        known = self._links.get(link)
        if known is None:
            known = self._links[link] = LinkState(ReceiveWindow(self._config.window), sender)
            if len(self._links) > MAX_LINKS:
                self._links.popitem(last=False)
        known.heard = now
        self._links.move_to_end(link)
        return known

    def _envelope(self, key: HandoffKey) -> dict[str, Any]:
        return {"sender": self._epoch, "receiver": key.sender, "handoff": key.handoff}

    def _of_sample(self, sample: SampleKey) -> DecodeHandoff | None:
        key = self._by_sample.get(sample)
        return None if key is None else self.handoffs.get(key)

    def _living(self, message: Open, now: float) -> list[AttemptKey]:
        """Lists an Open's attempts that are neither cancelled nor superseded."""
        dead = {each: self._dead.get(each.of, now) for each in message.attempts()}
        return [each for each, highest in dead.items() if highest is None or highest < each.attempt]

    def _settle(self, handoff: DecodeHandoff, now: float) -> None:
        """Forgets the samples of a handoff that is over, and of the handoff unless its blocks are in quarantine."""
        key = handoff.key
        if handoff.state is DecodeHandoffState.ENDED:
            del self.handoffs[key]
            self._ended.put(key, Ending(handoff.owned, handoff.abort_sent), now)
        elif handoff.state is not DecodeHandoffState.QUARANTINED:
            return
        for each in handoff.open.attempts():
            if self._by_sample.get(each.of) == key:
                del self._by_sample[each.of]
