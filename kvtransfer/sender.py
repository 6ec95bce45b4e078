"""The prefill side of one handoff, pure: an event and the time go in, instructions come out.

The cases of `Sender.handle` stand in the order of the sender's table in the protocol's description. What the world can
cause but the table does not have is dropped and counted; what only a wrong caller can cause raises IllegalMove.
"""

from enum import Enum, auto

from msgspec import Struct, structs

from core.config import Codec, TransferConfig
from core.errors import IllegalMove
from core.kvspec import KVSpec
from core.messages import NO_ROOM, Abort, Aborted, Accepted, Commit, Grant, Handoff, Layer, Open, Refused, Way
from kvtransfer.branches import branches_fit
from kvtransfer.digest import HandoffDigest
from kvtransfer.moves import Closed, FirstTokens, Instruction, OpenRequest, Outcome, Send, Unpinned
from kvtransfer.payloads import Payload, Payloads
from kvtransfer.stopwatch import Stopwatch


class SenderState(Enum):
    """Where the prefill side of a handoff stands."""

    OPENING = auto()
    STREAMING = auto()
    COMMITTED = auto()
    ABORTING = auto()
    CLOSED = auto()


class LayerReady(Struct, frozen=True):
    """Blocks before `upto` of this layer are final."""

    group: int
    layer: int
    upto: int


class PayloadLeft(Struct, frozen=True):
    """The channel took a payload, up to byte offset `end` of the link."""

    payload: Payload
    end: int
    digest: int
    way: Way | None = None  # that it went


class FrameDone(Struct, frozen=True):
    """The channel no longer reads the payload with this number."""

    number: int


class Covered(Struct, frozen=True):
    """The peer has seen the link up to byte offset `seen`."""

    seen: int


class GiveUp(Struct, frozen=True):
    """Cancel, higher attempt, deadline, or `done`: the first token ended all branches."""

    reason: str


class PeerDead(Struct, frozen=True):
    """The peer's epoch is over, and its socket is closed."""

    reason: str


SenderEvent = (
    Grant | Refused | Accepted | Abort | Aborted
    | LayerReady | FirstTokens | PayloadLeft | FrameDone | Covered | GiveUp | PeerDead
)  # fmt: skip
UNANSWERED = "payloads_unanswered"
"""The reason of handoffs on a link whose payloads do not arrive, or whose peer is gone."""
FINAL = frozenset({"done", "cancelled", "superseded"})
"""Reasons after which the request is not to be tried again."""

S = SenderState


class Sender:
    """One handoff of the prefill side."""

    def __init__(
        self,
        config: TransferConfig,
        ends: tuple[str, str],
        number: int,
        request: OpenRequest,
        spec: KVSpec,
        now: float,
        codec: Codec = "none",
        trace: bool = False,
    ) -> None:
        self._config = config
        self._ends = ends  # epochs: ours, the peer's
        self._fingerprint = spec.fingerprint()
        self.number = number
        self.request = request
        self.form = spec.form(codec)
        self.payloads = Payloads(spec, len(request.token_ids), codec)
        self.state = S.OPENING
        self.since = now  # when the current state began
        self.opened = now
        self.deadline = now + request.remaining_ms / 1000
        self.digest = HandoffDigest(trace)
        self.size = 0  # payload bytes that have left
        self.sent = 0  # payloads that have left
        self.flying: dict[int, int] = {}  # payload number -> link offset of its end; its blocks may still be read
        self.dropped = 0  # events that the table does not have
        self.watch = Stopwatch(now)
        self._end = self._seen = 0  # link offsets: of our last payload's end, and what the peer has seen
        self._way: Way | None = None
        self._last_sent = now
        self._first_tokens: FirstTokens | None = None
        self._commit: Commit | None = None
        self._outcome: tuple[Outcome, str, bool] = ("failed", "", True)

    def begin(self, now: float) -> list[Instruction]:
        """The first Open."""
        return self._send(self._open(now), now)

    def handle(self, event: SenderEvent, now: float) -> list[Instruction]:
        """One row of the table."""
        match event, self.state:
            case Grant(), S.OPENING:
                return self._stream(event, now)
            case Refused(), S.OPENING:
                return self._abort(event.reason, event.retryable, now)
            case LayerReady(), S.OPENING | S.STREAMING:
                self.payloads.ready(event.group, event.layer, event.upto)
                return []
            case PayloadLeft(), S.STREAMING:
                self._leave(event, now)
                return self._commit_if_all_left(now)
            case FirstTokens(), S.OPENING | S.STREAMING:
                return self._finish(event, now)
            case FrameDone(), _:
                self.flying.pop(event.number, None)
                return self._unpin_if_done()
            case Covered(), _:
                return self._cover(event.seen)
            case GiveUp("done"), _ if self._first_tokens is not None:
                raise IllegalMove(f"handoff {self.number} was committed and cannot be done")
            case Accepted(), S.COMMITTED | S.ABORTING:
                self.flying.clear()  # it was all read
                return self._close(("accepted", "", False), now)
            case GiveUp(), S.OPENING | S.STREAMING | S.COMMITTED:
                return self._abort(event.reason, True, now)
            case Abort(), S.OPENING | S.STREAMING | S.COMMITTED:
                answer = self._send(self._message(Aborted), now)
                return answer + self._close(_failure(event.reason, True), now)
            case Abort(), S.ABORTING:
                return self._send(self._message(Aborted), now) + self._close(self._outcome, now)
            case Aborted(), S.ABORTING:
                return self._close(self._outcome, now)
            case PeerDead(), S.ABORTING:
                return self._close(self._outcome, now)
            case PeerDead(), S.OPENING | S.STREAMING | S.COMMITTED:
                return self._close(_failure(event.reason, True), now)
            case ((Grant() | Abort()), S.CLOSED):
                return answer_closed(event, self._ends)
            case ((LayerReady() | FirstTokens() | GiveUp() | PeerDead()), S.ABORTING | S.CLOSED):
                return []  # the engine had not heard yet
            case ((LayerReady() | FirstTokens() | PayloadLeft()), _):
                raise IllegalMove(f"{type(event).__name__} in {self.state.name} of handoff {self.number}")
            case _:
                self.dropped += 1
                return []

    def tick(self, now: float, offset: int) -> list[Instruction]:
        """Deadlines, and repetition after silence; `offset` is the link's byte count."""
        if self.state in (S.OPENING, S.STREAMING, S.COMMITTED) and now >= self.deadline:
            return self._abort("deadline", True, now)
        if self.state is S.OPENING and now >= self.since + self._config.grant_deadline:
            return self._abort(NO_ROOM, True, now)
        if self.state is S.CLOSED or now < self._last_sent + self._config.repeat_ms / 1000:
            return []
        return self._send(self._repeated(now, offset), now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, or None when the handoff is closed."""
        if self.state is S.CLOSED:
            return None
        due = self._last_sent + self._config.repeat_ms / 1000
        if self.state is S.OPENING:
            due = min(due, self.since + self._config.grant_deadline)
        return due if self.state is S.ABORTING else min(due, self.deadline)

    def unanswered(self, now: float, heard: float, credited: float) -> str:
        """Whether a peer that would have to answer in this state was silent for too long: the reason, or empty.

        Whatever is sent while STREAMING, a payload or a probe, is answered by a Credit.
        """
        if self.state is S.STREAMING and now >= max(self.since, credited) + self._config.silence:
            return UNANSWERED
        waits = self.state in (S.COMMITTED, S.ABORTING)
        return "peer_silent" if waits and now >= max(self.since, heard) + self._config.silence else ""

    def waits(self) -> bool:
        """Whether a payload may leave, as far as this handoff goes."""
        return self.state is S.STREAMING and self.payloads.waiting

    def head(self, frame: int) -> Payload | None:
        """The next payload, of at most `frame` bytes or one block."""
        return self.payloads.head(frame) if self.state is S.STREAMING else None

    def sending(self) -> bool:
        """Is a payload ready to leave, or has one left that the peer has not seen?"""
        return self.waits() or self._end > self._seen

    def layer(self, payload: Payload, offset: int) -> Layer:
        """The header of a payload."""
        sender, receiver = self._ends
        return Layer(
            sender=sender, receiver=receiver, handoff=self.number, number=self.sent, group=payload.group,
            layer=payload.layer, first=payload.first, count=payload.count, offset=offset, size=payload.size,
        )  # fmt: skip

    def _stream(self, grant: Grant, now: float) -> list[Instruction]:
        if not 0 <= grant.held <= max(self.payloads.counts):
            return self._abort("bad_grant", True, now)
        self._enter(S.STREAMING, now)
        self.watch.granted(now)
        self.payloads.skip(grant.held)
        return self._commit_if_all_left(now)

    def _finish(self, tokens: FirstTokens, now: float) -> list[Instruction]:
        if self._first_tokens is not None or not self.payloads.computed():
            raise IllegalMove(f"handoff {self.number} is committed twice, or before all its layers are ready")
        if not branches_fit(self.request.samples, tokens.branches):
            raise IllegalMove(f"handoff {self.number} of samples {self.request.samples} has none of its branches")
        self._first_tokens = tokens
        self.watch.computed(now - tokens.age)
        return self._commit_if_all_left(now)

    def _leave(self, event: PayloadLeft, now: float) -> None:
        payload = event.payload
        self.payloads.left(payload)
        self.digest.add(payload.group, payload.layer, payload.first, event.digest)
        self.flying[self.sent] = self._end = event.end
        self._way = event.way
        self.sent += 1
        self.size += payload.size
        self._last_sent = now

    def _cover(self, seen: int) -> list[Instruction]:
        self._seen = seen
        while self.flying and next(iter(self.flying.values())) <= seen:  # oldest first
            del self.flying[next(iter(self.flying))]
        return self._unpin_if_done()

    def _commit_if_all_left(self, now: float) -> list[Instruction]:
        tokens = self._first_tokens
        if self.state is not S.STREAMING or tokens is None or not self.payloads.complete():
            return []
        sender, receiver = self._ends
        times = self.watch.read(now)
        stages = structs.replace(
            tokens.stages, grant_ms=times.grant_ms, send_ms=times.send_ms, exposed_ms=times.exposed_ms, way=self._way
        )
        self._commit = Commit(
            sender=sender, receiver=receiver, handoff=self.number, payloads=self.sent, size=self.size,
            digest=self.digest.value, offset=self._end, index=tokens.index, branches=tokens.branches,
            sampling=tokens.sampling, limits=tokens.limits, stages=stages,
        )  # fmt: skip
        self._enter(S.COMMITTED, now)
        return self._send(self._commit, now)

    def _abort(self, reason: str, retryable: bool, now: float) -> list[Instruction]:
        self._outcome = _failure(reason, retryable)
        self._enter(S.ABORTING, now)
        return self._send(self._message(Abort, reason=reason), now)

    def _close(self, outcome: tuple[Outcome, str, bool], now: float) -> list[Instruction]:
        self._enter(S.CLOSED, now)
        how, reason, retryable = outcome
        closed = Closed(
            handoff=self.number, outcome=how, reason=reason, retryable=retryable, bytes=self.size,
            digest=self.digest.value, ms=(now - self.opened) * 1000, digests=self.digest.payloads,
            times=self.watch.read(now),
        )  # fmt: skip
        return [closed, *self._unpin_if_done()]

    def _unpin_if_done(self) -> list[Instruction]:
        return [Unpinned(self.number)] if self.state is S.CLOSED and not self.flying else []

    def _repeated(self, now: float, offset: int) -> Handoff:
        if self.state is S.OPENING:
            return self._open(now)
        if self.state is S.STREAMING:  # a probe: we are alive, and the link is at this offset
            return self.layer(Payload(0, 0, 0, 0, 0), offset)
        if self.state is S.COMMITTED:
            assert self._commit is not None
            return self._commit
        return self._message(Abort, reason=self._outcome[1])

    def _open(self, now: float) -> Open:
        sender, receiver = self._ends
        request = self.request
        return Open(
            sender=sender, receiver=receiver, handoff=self.number, request=request.request, samples=request.samples,
            attempt=request.attempt, gateway=request.gateway, token_ids=request.token_ids,
            prompt_tokens=request.prompt_tokens, remaining_ms=max(0.0, self.deadline - now) * 1000,
            fingerprint=self._fingerprint, form=self.form, salt=request.salt, priority=request.priority,
        )  # fmt: skip

    def _message(self, kind: type[Abort] | type[Aborted], **fields: str) -> Abort | Aborted:
        sender, receiver = self._ends
        return kind(sender=sender, receiver=receiver, handoff=self.number, **fields)

    def _send(self, message: Handoff, now: float) -> list[Instruction]:
        self._last_sent = now
        return [Send(message)]

    def _enter(self, state: SenderState, now: float) -> None:
        self.state = state
        self.since = now


def answer_closed(message: Handoff, ends: tuple[str, str]) -> list[Instruction]:
    """What a closed, or forgotten, handoff answers: it is over here."""
    sender, receiver = ends
    match message:
        case Grant():
            return [Send(Abort(sender=sender, receiver=receiver, handoff=message.handoff, reason="closed"))]
        case Abort():
            return [Send(Aborted(sender=sender, receiver=receiver, handoff=message.handoff))]
        case _:
            return []


def _failure(reason: str, retryable: bool) -> tuple[Outcome, str, bool]:
    outcome: Outcome = "done" if reason == "done" else "failed"
    return outcome, reason, retryable and reason not in FINAL
