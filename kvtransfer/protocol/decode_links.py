"""Keeps, without I/O, every handoff of a decode worker, their links, and a memory of the handoffs that are over."""

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
from kvtransfer.protocol.decode_handoff import (
    DecodeHandoff,
    DecodeHandoffEvent,
    DecodeHandoffState,
    LayerArrived,
    PayloadLanded,
    SenderDead,
)
from kvtransfer.protocol.flow import ReceiveWindow
from kvtransfer.protocol.instructions import Instruction, Land, Send
from kvtransfer.protocol.ttl_map import TTLMap

MAX_REMAINING_MS = 1e12  # no request may take so long
MAX_LINKS = 1024
DIGEST_PATTERN = re.compile(r"(?:[0-9a-f]{32})?")  # of a salt or an adapter; empty without a tenant, or an adapter
FromSender = Open | Remind | Layer | Commit | Abort | Aborted


class Ending(Struct, frozen=True):
    """Remembers how a handoff has ended."""

    owned: bool  # it was accepted before
    told: bool  # our Abort was sent


class LinkState:
    """Holds what all handoffs of a link share."""

    __slots__ = ("heard", "sender", "window")

    def __init__(self, window: ReceiveWindow, sender: str) -> None:
        self.window = window
        self.sender = sender  # epoch
        self.heard = 0.0  # when its last message came, s


class DecodeLinks:
    """Keeps handoffs by key. Memory is bounded: of one that is over two flags are remembered, for a time."""

    def __init__(self, config: TransferConfig, epoch: str, spec: KVSpec, trace: bool = False) -> None:
        self._config = config
        self._epoch = epoch
        self._spec = spec
        self._fingerprint = spec.fingerprint()
        self._trace = trace
        self._draining = False
        self._ticked = 0.0
        self._links: OrderedDict[bytes, LinkState] = OrderedDict()  # the one whose message came last is the last
        self._moved: dict[bytes, None] = {}  # links that are due a Credit
        self._by_sample: dict[SampleKey, HandoffKey] = {}  # the live handoffs
        self._ended: TTLMap[HandoffKey, Ending] = TTLMap(config.remember)
        self._dead: TTLMap[SampleKey, int] = TTLMap(config.remember)  # highest attempt that was cancelled or superseded
        self.handoffs: dict[HandoffKey, DecodeHandoff] = {}
        self.strays = 0  # messages that were dropped: meant for another epoch or link, or without a row in the table

    def receive(self, link: bytes, message: FromSender, size: int, now: float) -> list[Instruction]:
        """Handles a message of a prefill worker; `size` is that of a Layer's payload, in bytes."""
        known = self._heard(link, message.sender, now)
        if isinstance(message, Layer) and known.window.saw(message.offset, max(0, message.size)):
            self._moved[link] = None
        key = HandoffKey(message.sender, message.handoff)
        receiver = self.handoffs.get(key)
        if message.receiver != self._epoch:  # meant for an earlier life at this address
            self.strays += 1
            return self._answer_unknown(link, key, message, now)
        if receiver is None:
            if isinstance(message, Open):
                return self._open(link, key, message, now)
            return self._answer_unknown(link, key, message, now)
        if link != receiver.link:  # a handoff lives and dies with its link
            self.strays += 1
            return []
        event = LayerArrived(message, size) if isinstance(message, Layer) else message
        return self._step(receiver, event, now)

    def handle(self, event: FromDecode, now: float) -> list[Instruction]:
        """Takes an event of the engine to its handoff. If that is over, its `Dropped` is under way.

        Raises `IllegalMove` for an event that the handoff's state does not allow.
        """
        if isinstance(event, CancelAttempt):
            return self.cancel(event.key, now)
        receiver = self.handoffs.get(event.key)
        return [] if receiver is None else self._step(receiver, event, now)

    def landed(self, land: Land, digest: int, now: float) -> list[Instruction]:
        """Reports that a `Land` was carried out; `digest` is that of its payload."""
        receiver = self.handoffs.get(land.key)
        return [] if receiver is None else self._step(receiver, PayloadLanded(land.header, digest), now)

    def unjoined(self, link: bytes, header: Layer) -> Send:
        """Answers a payload whose link has no session: its handoff is over, and its sender should join."""
        self.strays += 1
        return Send(Abort(sender=self._epoch, receiver=header.sender, handoff=header.handoff, reason="unjoined"), link)

    def cut_off(self, link: bytes, reason: str, now: float) -> list[Instruction]:
        """Ends the handoffs of a link from which nothing more is read, but for those that were accepted."""
        gone = [
            each for each in self.handoffs.values() if each.link == link and each.state is not DecodeHandoffState.OWNED
        ]
        return [instruction for receiver in gone for instruction in self._step(receiver, SenderDead(reason), now)]

    def cancel(self, dead: AttemptKey, now: float, reason: str = "cancelled") -> list[Instruction]:
        """Remembers that attempts at a sample up to this one are dead, those too whose Open has still to come.

        A handoff ends when all its samples are dead. Until then it moves the prompt for those that are left.
        """
        highest = self._dead.get(dead.of, now)
        self._dead.put(dead.of, dead.attempt if highest is None else max(dead.attempt, highest), now)
        receiver = self._of_sample(dead.of)
        if receiver is None or receiver.open.attempt > dead.attempt or self._living(receiver.open, now):
            return []
        return self._step(receiver, HandoffOver(receiver.key, reason), now)

    def knows(self, key: AttemptKey) -> bool:
        """Tells whether a handoff of this attempt waits, lands, or has landed here."""
        receiver = self._of_sample(key.of)
        return (
            receiver is not None
            and receiver.open.attempt == key.attempt
            and receiver.state is not DecodeHandoffState.ENDED
        )

    def drain(self) -> None:
        """Refuses every new handoff from now on; those that were opened go on."""
        self._draining = True

    def tick(self, now: float) -> list[Instruction]:
        """Checks all deadlines, and forgets what is old. A long pause of our own is not the senders' silence."""
        instructions: list[Instruction] = []
        paused, self._ticked = now - self._ticked > self._config.silence / 2, now
        for key, receiver in list(self.handoffs.items()):
            if paused:
                receiver.heard = now
            elif (known := self._links.get(receiver.link)) is not None:
                receiver.heard = max(receiver.heard, known.heard)  # its messages may wait behind another handoff's
            instructions += receiver.tick(now)
            if receiver.state is DecodeHandoffState.OWNED and now >= receiver.deadline + self._config.silence:
                receiver.handle(HandoffOver(key), now)
            if receiver.state is DecodeHandoffState.ENDED:
                self._forget(key, receiver, now)
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
        """Returns when to call `tick`, often enough to tell our own pause from silence; None while no handoff waits."""
        dues = [due for receiver in self.handoffs.values() if (due := receiver.next_deadline()) is not None]
        return min(*dues, self._ticked + self._config.silence / 4) if dues else None

    def _step(self, receiver: DecodeHandoff, event: DecodeHandoffEvent, now: float) -> list[Instruction]:
        before = receiver.dropped
        instructions = receiver.handle(event, now)
        self.strays += receiver.dropped - before
        if receiver.state is DecodeHandoffState.ENDED:
            self._forget(receiver.key, receiver, now)
        return instructions

    def _open(self, link: bytes, key: HandoffKey, message: Open, now: float) -> list[Instruction]:
        ending = self._ended.get(key, now)
        if ending is not None and ending.owned:
            self.strays += 1  # a late repetition
            return []
        reason, text, retryable = self._obstacle(key, message, now)
        if reason:
            return [Send(Refused(**self._head(key), reason=reason, message=text, retryable=retryable), link)]
        instructions: list[Instruction] = []
        living = self._living(message, now)
        if message.attempt > 0:  # the higher attempt kills the lower
            for each in living:
                instructions += self.cancel(each._replace(attempt=each.attempt - 1), now, "superseded")
        receiver = DecodeHandoff(self._config, key, message, self._spec, now, self._trace)
        receiver.link, receiver.window = link, self._heard(link, message.sender, now).window
        self.handoffs[key] = receiver
        self._by_sample |= {each.of: key for each in living}
        return instructions + receiver.begin(tuple(each.sample for each in living))

    def _obstacle(self, key: HandoffKey, message: Open, now: float) -> tuple[str, str, bool]:
        """Says why an Open cannot be taken: a stable word, a sentence, whether another try may do. Empty if it can."""
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
        """Answers a message to a handoff that is over or unknown: what is over stays over, and the sender is told."""
        ending = self._ended.get(key, now) or Ending(False, False)
        head = self._head(key)
        abort = Send(Abort(**head, reason="ended"), link)
        match message:
            case Open() | Remind() if message.receiver != self._epoch:  # our epoch in the answer says so
                return [Send(Refused(**head, reason="stale", message="this worker has started anew"), link)]
            case Remind() if ending.owned:
                self.strays += 1  # a late repetition
                return []
            case Commit() | Abort() if ending.owned:
                return [Send(Accepted(**head), link)]
            case Commit() | Remind():
                return [abort]
            case Abort():
                self._ended.put(key, ending, now)  # an Open that comes later still is too late
                return [Send(Aborted(**head), link)]
            case Layer():
                self.strays += 1
                once = not ending.told or message.count == 0  # probes are rare, and want an answer
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

    def _head(self, key: HandoffKey) -> dict[str, Any]:
        """Returns the fields with which every message of a handoff begins."""
        return {"sender": self._epoch, "receiver": key.sender, "handoff": key.handoff}

    def _of_sample(self, sample: SampleKey) -> DecodeHandoff | None:
        key = self._by_sample.get(sample)
        return None if key is None else self.handoffs.get(key)

    def _living(self, message: Open, now: float) -> list[AttemptKey]:
        """Lists the attempts of an Open that are neither cancelled nor superseded."""
        dead = {each: self._dead.get(each.of, now) for each in message.attempts()}
        return [each for each, highest in dead.items() if highest is None or highest < each.attempt]

    def _forget(self, key: HandoffKey, receiver: DecodeHandoff, now: float) -> None:
        del self.handoffs[key]
        self._ended.put(key, Ending(receiver.owned, receiver.told), now)
        for each in receiver.open.attempts():
            if self._by_sample.get(each.of) == key:
                del self._by_sample[each.of]
