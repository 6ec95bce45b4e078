"""The decode side of one handoff as a pure state machine: events and the time go in, instructions come out.

The cases of `DecodeHandoff.handle` are in the order of the states. `DecodeLinks` handles messages of unknown handoffs
(state NONE) and of ended handoffs.
"""

from enum import Enum, auto
from typing import Any

from contracts.errors import IllegalMove
from contracts.kv.spec import KVSpec, PayloadConversion
from contracts.messages.gateway import REASON_SENDER_SILENT
from contracts.messages.handoff import (
    Abort,
    Aborted,
    Accepted,
    Commit,
    Grant,
    Handoff,
    Layer,
    Open,
    Refused,
    Remind,
    Waiting,
)
from infra.config.transfer import TransferConfig
from kvtransfer.digest import HandoffDigest
from kvtransfer.events import BlocksGranted, BlocksRefused, BlocksWanted, Dropped, HandoffOver, Landed
from kvtransfer.handoff import HandoffKey, branches_fit, handoff_blocks
from kvtransfer.protocol.decode_events import (
    DecodeHandoffEvent,
    LayerArrived,
    PayloadLanded,
    SenderDead,
    WriterCame,
    WriterGone,
)
from kvtransfer.protocol.flow import ReceiveWindow
from kvtransfer.protocol.instructions import Instruction, Land, Send


class DecodeHandoffState(Enum):
    """States of a handoff on the decode side."""

    NONE = auto()  # never opened here, or forgotten
    WAITING = auto()  # waits for the engine's blocks
    GRANTED = auto()  # blocks are reserved, and payloads land in them
    VERIFYING = auto()  # Commit has arrived, but not all payloads
    OWNED = auto()  # accepted: the sequences run here
    QUARANTINED = auto()  # over, but its sender may still write into the blocks
    ENDED = auto()  # over, accepted or not


State = DecodeHandoffState
ABORTS_PER_SILENCE = 4  # sent from quarantine within the silence after which the peer would consider this worker dead


class DecodeHandoff:
    """One handoff on the decode side, from its Open to its end."""

    def __init__(
        self, config: TransferConfig, key: HandoffKey, message: Open, spec: KVSpec, now: float, trace: bool = False
    ) -> None:
        self._config = config
        self._spec = spec
        self.key = key
        self.open = message
        self._envelope: dict[str, Any] = {"sender": message.receiver, "receiver": key.sender, "handoff": key.handoff}
        self.state = State.WAITING
        self.link = b""
        self.window = ReceiveWindow(config.window)
        self.heard = now  # last sign of life of the sender, s
        self.deadline = now + message.remaining_ms / 1000
        self.sender_writes = False  # the sender writes payloads into the granted blocks itself
        self.owned = False  # was OWNED once: then its sender gets Accepted as the answer
        self.abort_sent = False  # so later payloads need no other answer
        self.dropped = 0  # events without a transition, and repeated payloads
        tokens = message.tokens
        self.blocks = handoff_blocks(spec, tokens)  # needed by the prompt in each KV group, in our block size
        peer_spec = spec.in_form(message.form)
        assert peer_spec is not None and peer_spec.fingerprint() == message.fingerprint, "an Open that fits"
        self._converts = message.form != spec.form()
        self._peer_blocks = handoff_blocks(peer_spec, tokens)
        self._peer_block_bytes = [group.wire_bytes(message.form.codec, peer_spec.dtype) for group in peer_spec.groups]
        self.digest = HandoffDigest(trace)
        self.size = 0  # payload bytes landed
        self.landed = 0  # payloads landed
        self._arrived = 0  # payloads taken, landed or landing
        self._granted = BlocksGranted(key, (), ())
        self._peer_held: list[int] = []
        self._upto: dict[tuple[int, int], int] = {}  # (group, layer) -> blocks before this one are here
        self._commit: Commit | None = None
        self._committed = 0.0  # when Commit arrived
        self._verify_by = 0.0  # when missing payloads are given up
        self._seen_before = 0  # the link's byte offset when `_verify_by` was set
        self._end_reason = ""  # in quarantine, why it is over
        self._repeat_at = 0.0  # in quarantine, when Abort is repeated; 0 before its first tick

    def begin(self, samples: tuple[int, ...]) -> list[Instruction]:
        """Requests blocks from the engine, for the samples that are not dead yet."""
        return [BlocksWanted(self.key, self.open, samples)]

    def handle(self, event: DecodeHandoffEvent, now: float) -> list[Instruction]:
        """Takes an event. Raises `IllegalMove` for a grant that does not fit, or for a second grant."""
        if isinstance(event, Open | Remind | Commit | LayerArrived):
            self.heard = now
        match event, self.state:
            case ((Open() | Remind()), State.WAITING):
                return [self._message(Waiting)]  # after it repetitions carry no tokens
            case BlocksGranted(), State.WAITING:
                return self._grant(event)
            case BlocksRefused(), State.WAITING:
                self.state = State.ENDED
                return [self._refused(event)]
            case ((Open() | Remind()), State.GRANTED):
                return [self._grant_message()]
            case WriterCame(), State.GRANTED:
                self.sender_writes = True
                return [self._grant_message()]  # now with the blocks
            case WriterCame(), _:
                self.sender_writes = True
                return []
            case ((Commit() | Abort() | Aborted() | WriterGone()), State.QUARANTINED):  # its sender has stopped writing
                self.sender_writes = False
                answer = [self._message(Aborted)] if isinstance(event, Abort) else []
                return [*answer, *self._end(self._end_reason)]
            case ((HandoffOver() | BlocksRefused() | SenderDead()), State.QUARANTINED):
                return []
            case WriterGone(), _:
                self.sender_writes = False
                return []
            case LayerArrived(), State.GRANTED | State.VERIFYING:
                return self._arrive(event)
            case PayloadLanded(), State.GRANTED | State.VERIFYING:
                return self._land(event, now)
            case Commit(), State.GRANTED if not branches_fit(self.open.samples, event.branches):
                return self._fail("bad_commit")
            case Commit(), State.GRANTED:
                self._commit = event
                self._committed = now
                self._await_payloads(now)
                self.state = State.VERIFYING
                return self._verify(now)
            case Abort(), State.WAITING | State.GRANTED | State.VERIFYING:
                return [self._message(Aborted), *self._end(event.reason)]
            case HandoffOver(), State.WAITING | State.GRANTED | State.VERIFYING:
                return self._fail(event.reason)
            case SenderDead(), State.WAITING | State.GRANTED | State.VERIFYING:  # in case it lives
                return self._fail(event.reason)
            case ((Commit() | Abort()), State.OWNED):
                return [self._message(Accepted)]
            case HandoffOver(reason="finished"), State.OWNED:
                self.state = State.ENDED
                return []
            case HandoffOver(), State.OWNED:
                self.state = State.ENDED
                return [Dropped(self.key, event.reason, True)]
            case Commit(), State.WAITING:
                return self._fail("commit_before_grant")
            case LayerArrived(), State.WAITING:
                return self._fail("layer_before_grant")
            case BlocksRefused(), State.GRANTED | State.VERIFYING:  # the engine stops, and withdraws its grant
                return self._fail(event.reason)
            case BlocksGranted(), State.GRANTED | State.VERIFYING | State.OWNED:
                raise IllegalMove(f"{type(event).__name__} in {self.state.name} of handoff {self.key}")
            case PayloadLanded(), _:
                return []  # it ended while the payload was landing
            case _:
                self.dropped += 1
                return []

    def tick(self, now: float) -> list[Instruction]:
        """Ends a handoff past a deadline: of the request, of the verification, or of the sender's silence."""
        if self.state is State.QUARANTINED and now >= self._repeat_at:
            is_first, self._repeat_at = not self._repeat_at, now + self._config.silence / ABORTS_PER_SILENCE
            return [] if is_first else [self._message(Abort, reason=self._end_reason)]
        if self.state not in (State.WAITING, State.GRANTED, State.VERIFYING):
            return []
        if now >= self.deadline:
            return self._fail("deadline")
        if self._commit is not None and self.window.seen >= self._commit.offset and self.landed == self._arrived:
            return self._verify(now)  # no payload is under way any more
        if self.state is State.VERIFYING and now >= self._verify_by:
            if self.window.seen == self._seen_before:
                return self._fail("incomplete")
            self._await_payloads(now)  # Commit has overtaken payloads that are still coming
        if now >= self.heard + self._config.silence:
            return self.handle(SenderDead(REASON_SENDER_SILENT), now)
        return []

    def next_deadline(self) -> float | None:
        """Returns when to call `tick` next; None if nothing is due."""
        if self.state is State.QUARANTINED:
            return self._repeat_at
        if self.state not in (State.WAITING, State.GRANTED, State.VERIFYING):
            return None
        due = min(self.deadline, self.heard + self._config.silence)
        return min(due, self._verify_by) if self.state is State.VERIFYING else due

    def _grant(self, granted: BlocksGranted) -> list[Instruction]:
        fits = len(granted.blocks) == len(granted.held) == len(self.blocks) and all(
            len(table) >= needed.stop >= held >= needed.start
            for table, needed, held in zip(granted.blocks, self.blocks, granted.held, strict=True)
        )
        if not fits:
            raise IllegalMove(f"handoff {self.key} needs {self.blocks} blocks; the grant does not fit")
        self._granted = granted
        self._peer_held = [self._in_peer_blocks(group, held) for group, held in enumerate(granted.held)]
        self._upto = {
            (at, layer): self._peer_held[at] for at, group in enumerate(self._spec.groups) for layer in group.layers
        }
        self.state = State.GRANTED
        return [self._grant_message()]

    def _arrive(self, event: LayerArrived) -> list[Instruction]:
        header = event.header
        if header.number < self._arrived or (header.count == 0 and header.number == self._arrived):
            self.dropped += header.count > 0
            is_probe = header.count == 0
            grant_lost = self.sender_writes and is_probe and not self._arrived
            return [self._grant_message()] if grant_lost else []
        if header.number > self._arrived:
            return self._fail("gap")
        layer = (header.group, header.layer)
        upto = self._upto.get(layer)
        if upto is None or header.first != upto or upto + header.count > self._peer_blocks[header.group].stop:
            return self._fail("bad_frame")
        if not 0 < event.size == header.size == header.count * self._peer_block_bytes[header.group]:
            return self._fail("bad_frame")
        self._arrived += 1
        self._upto[layer] = upto + header.count
        return [Land(self.key, header, self._target(header))]

    def _target(self, header: Layer) -> list[int] | PayloadConversion:
        table = self._granted.blocks[header.group]
        if not self._converts:
            return table[header.first : header.first + header.count]
        held = self._granted.held[header.group] * self._spec.groups[header.group].block_tokens
        first = header.first * self.open.form.block_tokens
        blocks = table[: self.blocks[header.group].stop]
        return PayloadConversion(self.open.form, header.group, header.layer, blocks, first, held)

    def _in_peer_blocks(self, group: int, held: int) -> int:
        """Converts `held` leading blocks of a group into the sender's leading blocks that it need not send.

        A sender's block that is held in part is sent whole; its held tokens are kept.
        """
        moving = self._peer_blocks[group]
        if held >= self.blocks[group].stop:
            return moving.stop
        covered = held * self._spec.groups[group].block_tokens // self.open.form.block_tokens
        return max(covered, moving.start)

    def _await_payloads(self, now: float) -> None:
        self._seen_before = self.window.seen
        self._verify_by = now + self._config.verify_deadline

    def _land(self, event: PayloadLanded, now: float) -> list[Instruction]:
        header = event.header
        self.digest.add(header.group, header.layer, header.first, event.digest)
        self.landed += 1
        self.size += header.size
        return self._verify(now) if self.state is State.VERIFYING else []

    def _verify(self, now: float) -> list[Instruction]:
        commit = self._commit
        assert commit is not None
        if self.landed < self._arrived or (self.landed < commit.payloads and self.window.seen < commit.offset):
            return []  # payloads are still being digested, or are under way
        complete = all(upto == self._peer_blocks[group].stop for (group, _), upto in self._upto.items())
        if not complete or (self.landed, self.size) != (commit.payloads, commit.size):
            return self._fail("incomplete")
        if self.digest.value != commit.digest:
            return self._fail("bad_digest")
        self.state = State.OWNED
        self.owned = True
        landed = Landed(
            key=self.key,
            open=self.open,
            commit=commit,
            bytes=self.size,
            digest=self.digest.value,
            digests=self.digest.payloads,
            land_ms=(now - self._committed) * 1000,
        )
        return [landed, self._message(Accepted)]

    def _fail(self, reason: str) -> list[Instruction]:
        """Ends it. Blocks into which the sender may still write stay taken: it stops with its Commit or Abort."""
        self.abort_sent = True
        abort = self._message(Abort, reason=reason)
        if self.state is State.GRANTED and self.sender_writes:
            self.state, self._end_reason = State.QUARANTINED, reason
            return [abort]
        return [*self._end(reason), abort]

    def _end(self, reason: str) -> list[Instruction]:
        self.state = State.ENDED
        return [Dropped(self.key, reason)]

    def _grant_message(self) -> Send:
        blocks = self._granted.blocks if self.sender_writes and not self._converts else ()
        return Send(Grant(**self._envelope, held=self._peer_held, limit=self.window.limit, blocks=blocks), self.link)

    def _refused(self, event: BlocksRefused) -> Send:
        refused = Refused(**self._envelope, reason=event.reason, message=event.message, retryable=event.retryable)
        return Send(refused, self.link)

    def _message(self, kind: type[Handoff], **fields: Any) -> Send:
        return Send(kind(**self._envelope, **fields), self.link)
