"""The prefill side of one handoff as a pure state machine: events and the time go in, instructions come out.

The cases of `PrefillHandoff.handle` are in the order of the states. Events without a transition that a peer can cause
are dropped and counted; events that only a wrong caller can cause raise IllegalMove.
"""

from enum import Enum, auto
from typing import Any

from msgspec import structs

from contracts.errors import IllegalMove
from contracts.kinds import Codec
from contracts.kv.spec import KVSpec
from contracts.messages.gateway import REASON_CROWDED, REASON_NO_ROOM
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
from kvtransfer.events import AbortHandoff, Closed, CommitHandoff, LayerReady, OpenHandoff, Outcome, Unpinned
from kvtransfer.handoff import branches_fit
from kvtransfer.protocol.instructions import Instruction, Send
from kvtransfer.protocol.payloads import Payload, Payloads
from kvtransfer.protocol.prefill_events import FrameDone, LinkSeen, PayloadTaken, PeerDead, PrefillHandoffEvent
from kvtransfer.protocol.sent_payloads import SentPayloads
from kvtransfer.protocol.stopwatch import Stopwatch


class PrefillHandoffState(Enum):
    """States of a handoff on the prefill side."""

    OPENING = auto()  # asks for blocks
    STREAMING = auto()  # blocks are granted, payloads are sent as they become ready
    COMMITTED = auto()  # everything was sent, and Commit is not answered yet
    ABORTING = auto()  # given up, and Abort is not answered yet
    CLOSED = auto()  # over; frames may still be read


REASON_UNANSWERED = "payloads_unanswered"
"""Reason of handoffs on a link whose payloads do not arrive, or whose peer is gone."""
REMINDERS_PER_SILENCE = 4  # reminders sent within the silence after which the peer would consider this worker dead
FINAL_REASONS = frozenset({"done", "cancelled", "superseded"})  # reasons after which the request is not tried again

State = PrefillHandoffState


class PrefillHandoff:
    """One handoff on the prefill side, from its Open to its end."""

    def __init__(
        self,
        config: TransferConfig,
        epoch: str,
        opened: OpenHandoff,
        spec: KVSpec,
        now: float,
        codec: Codec = "none",
        trace: bool = False,
    ) -> None:
        """`epoch` is the prefill worker's, `now` in s; `trace` keeps each payload's digest, for tests."""
        self._config = config
        self._envelope: dict[str, Any] = _envelope(opened.handoff, (epoch, opened.job.decode_epoch))
        self._fingerprint = spec.fingerprint()
        self.number = opened.handoff
        self.opened = opened
        self.form = spec.form(codec)
        self.payloads = Payloads(spec, len(opened.job.prompt.token_ids), codec)
        self.granted: tuple[list[int], ...] = ()  # block tables in the peer's pool, if this side may write into it
        self.state = State.OPENING
        self.since = now  # when the current state began
        self._opened_at = now
        self.sent = SentPayloads(trace)
        self.dropped = 0  # events without a transition
        self.watch = Stopwatch(now)
        self._last_sent = now
        # whether the peer has queued us; None before its first answer, False if its queue is full
        self._is_queued: bool | None = None
        self._answered = now  # time of the peer's last answer to Open
        self._repeat_after = config.repeat_ms / 1000  # s of silence until a message is repeated
        self._to_commit: CommitHandoff | None = None  # the samples to hand over, once the prompt is computed
        self._commit: Commit | None = None
        self._outcome: tuple[Outcome, str, bool] = ("failed", "", True)

    def begin(self, now: float) -> list[Instruction]:
        return self._send(self._open(now), now)

    def handle(self, event: PrefillHandoffEvent, now: float) -> list[Instruction]:
        """Takes an event. Raises `IllegalMove` for an event that only a wrong caller can cause."""
        match event, self.state:
            case Waiting(), State.OPENING:
                self._is_queued, self._answered = True, now
                return []
            case Refused(reason=reason), State.OPENING if reason == REASON_CROWDED:
                self._is_queued, self._answered = False, now
                return []
            case Grant(), State.OPENING:
                return self._stream(event, now)
            case Grant(), State.STREAMING if event.blocks and not self.granted:
                return self._take_blocks(event, now)
            case Grant(), State.STREAMING | State.COMMITTED if event.blocks:
                return []  # repeated, in case the first was lost
            case Refused(), State.OPENING:
                return self._abort(event.reason, event.retryable, now)
            case LayerReady(), State.OPENING | State.STREAMING:
                self.payloads.ready(event.group, event.layer, event.upto)
                return []
            case PayloadTaken(), State.STREAMING:
                self.payloads.taken(event.payload)
                self.sent.add(event)
                self._last_sent = now
                return self._commit_if_all_sent(now)
            case CommitHandoff(), State.OPENING | State.STREAMING:
                return self._finish(event, now)
            case FrameDone(), _:
                commit = self._commit_if_all_sent(now) if self.sent.frame_done(event) else []
                return [*commit, *self._unpin_if_done()]
            case LinkSeen(), _:
                self.sent.link_seen(event.seen)
                return self._unpin_if_done()
            case AbortHandoff(reason="done"), _ if self._to_commit is not None:
                raise IllegalMove(f"handoff {self.number} was committed and cannot be done")
            case Accepted(), State.COMMITTED | State.ABORTING:
                self.sent.all_read()
                return self._close(("accepted", "", False), now)
            case AbortHandoff(), State.OPENING | State.STREAMING | State.COMMITTED:
                return self._abort(event.reason, True, now)
            case Abort(), State.OPENING | State.STREAMING | State.COMMITTED:
                answer = self._send(self._message(Aborted), now)
                return answer + self._close(_failure(event.reason, True), now)
            case Abort(), State.ABORTING:
                return self._send(self._message(Aborted), now) + self._close(self._outcome, now)
            case Aborted(), State.ABORTING:
                return self._close(self._outcome, now)
            case PeerDead(), State.ABORTING:
                return self._close(self._outcome, now)
            case PeerDead(), State.OPENING | State.STREAMING | State.COMMITTED:
                return self._close(_failure(event.reason, True), now)
            case ((Grant() | Abort()), State.CLOSED):
                return answer_closed(event, (self._envelope["sender"], self._envelope["receiver"]))
            case ((LayerReady() | CommitHandoff() | AbortHandoff() | PeerDead()), State.ABORTING | State.CLOSED):
                return []  # the engine did not know yet that the handoff is over
            case ((LayerReady() | CommitHandoff() | PayloadTaken()), _):
                raise IllegalMove(f"{type(event).__name__} in {self.state.name} of handoff {self.number}")
            case _:
                self.dropped += 1
                return []

    def tick(self, now: float, offset: int) -> list[Instruction]:
        """Aborts past a deadline, and repeats a message after silence; `offset` is the link's byte count."""
        if self.state in (State.OPENING, State.STREAMING, State.COMMITTED) and now >= self.opened.deadline:
            return self._abort("deadline", True, now)
        if self.state is State.OPENING and now >= self._answer_by():
            return self._abort(REASON_NO_ROOM, True, now)
        if self.state is State.CLOSED or now < self._last_sent + self._repeat_after:
            return []
        if (
            self._is_queued is not None and self.state is State.OPENING
        ):  # a reminder only recovers a lost Grant, which is rare
            self._repeat_after = min(2 * self._repeat_after, self._config.silence / REMINDERS_PER_SILENCE)
        return self._send(self._repeated(now, offset), now)

    def next_deadline(self) -> float | None:
        """Returns when to call `tick` next; None once the handoff is closed."""
        if self.state is State.CLOSED:
            return None
        due = self._last_sent + self._repeat_after
        if self.state is State.OPENING:
            due = min(due, self._answer_by())
        return due if self.state is State.ABORTING else min(due, self.opened.deadline)

    def _answer_by(self) -> float:
        """Deadline of the answer to Open; each `Waiting` message prolongs it."""
        return self._answered + self._config.grant_deadline

    def silence_reason(self, now: float, heard: float, credited: float) -> str:
        """Returns why a peer is given up that must answer in this state but was silent too long; "" if not.

        Its last message came at `heard`, its last Credit at `credited`. While STREAMING, every payload and every probe
        is answered by a Credit.
        """
        if self.state is State.STREAMING and now >= max(self.since, credited) + self._config.silence:
            return REASON_UNANSWERED
        waits = self.state in (State.COMMITTED, State.ABORTING)
        return "peer_silent" if waits and now >= max(self.since, heard) + self._config.silence else ""

    def waits(self) -> bool:
        return self.state is State.STREAMING and self.payloads.waiting

    def next_payload(self, frame: int, after: Payload | None = None) -> Payload | None:
        """Returns the next payload, of at most `frame` bytes or one block; None without a ready payload.

        With `after`, which is the next payload, returns the one that follows it.
        """
        return self.payloads.next_payload(frame, after) if self.state is State.STREAMING else None

    def sending(self) -> bool:
        return self.waits() or self.unseen()

    def unseen(self) -> bool:
        """Whether the peer has not yet seen all payloads that were sent, the flying ones included."""
        return not self.sent.are_seen

    def layer(self, payload: Payload, offset: int) -> Layer:
        """Returns the header of a payload that begins at the link's byte `offset`."""
        return Layer(
            **self._envelope,
            number=self.sent.count,
            group=payload.group,
            layer=payload.layer,
            first=payload.first,
            count=payload.count,
            offset=offset,
            size=payload.size,
        )

    def _stream(self, grant: Grant, now: float) -> list[Instruction]:
        held, blocks = grant.held, self.payloads.blocks
        if len(held) != len(blocks) or not all(
            moving.start <= count <= moving.stop for count, moving in zip(held, blocks, strict=True)
        ):
            return self._abort("bad_grant", True, now)
        self._enter(State.STREAMING, now)
        self.watch.granted(now)
        self.payloads.skip(held)
        if grant.blocks and (refusal := self._take_blocks(grant, now)):
            return refusal
        return self._commit_if_all_sent(now)

    def _take_blocks(self, grant: Grant, now: float) -> list[Instruction]:
        """Learns where in the peer's pool its blocks are."""
        blocks = self.payloads.blocks
        if len(grant.blocks) != len(blocks) or any(
            len(table) < moving.stop for table, moving in zip(grant.blocks, blocks, strict=True)
        ):
            return self._abort("bad_grant", True, now)
        self.granted = grant.blocks
        return []

    def _finish(self, commit_order: CommitHandoff, now: float) -> list[Instruction]:
        if self._to_commit is not None or not self.payloads.computed():
            raise IllegalMove(f"handoff {self.number} is committed twice, or before all its layers are ready")
        if not branches_fit(self.opened.samples, commit_order.branches):
            raise IllegalMove(f"handoff {self.number} of samples {self.opened.samples} has none of its branches")
        self._to_commit = commit_order
        self.watch.computed(min(now, commit_order.computed_at))
        return self._commit_if_all_sent(now)

    def _commit_if_all_sent(self, now: float) -> list[Instruction]:
        commit_order, job = self._to_commit, self.opened.job
        if (
            self.state is not State.STREAMING
            or commit_order is None
            or self.sent.copied
            or not self.payloads.complete()
        ):
            return []
        times = self.watch.read(now)
        stages = structs.replace(
            commit_order.stages,
            grant_ms=times.grant_ms,
            send_ms=times.send_ms,
            exposed_ms=times.exposed_ms,
            way=self.sent.way,
        )
        self._commit = Commit(
            **self._envelope,
            payloads=self.sent.count,
            size=self.sent.size,
            digest=self.sent.digest.value,
            offset=self.sent.end,
            index=job.prompt.emitted,
            branches=commit_order.branches,
            sampling=job.sampling,
            limits=job.limits,
            stages=stages,
            prompt_scores=commit_order.prompt_scores,
            state=commit_order.state,
        )
        self._enter(State.COMMITTED, now)
        return self._send(self._commit, now)

    def _abort(self, reason: str, retryable: bool, now: float) -> list[Instruction]:
        self._outcome = _failure(reason, retryable)
        self._enter(State.ABORTING, now)
        return self._send(self._message(Abort, reason=reason), now)

    def _close(self, outcome: tuple[Outcome, str, bool], now: float) -> list[Instruction]:
        self._enter(State.CLOSED, now)
        how, reason, retryable = outcome
        closed = Closed(
            handoff=self.number,
            outcome=how,
            reason=reason,
            retryable=retryable,
            bytes=self.sent.size,
            digest=self.sent.digest.value,
            ms=(now - self._opened_at) * 1000,
            digests=self.sent.digest.payloads,
            times=self.watch.read(now),
        )
        return [closed, *self._unpin_if_done()]

    def _unpin_if_done(self) -> list[Instruction]:
        return [Unpinned(self.number)] if self.state is State.CLOSED and self.sent.are_read else []

    def _repeated(self, now: float, offset: int) -> Handoff:
        if self.state is State.OPENING:
            return Remind(**self._envelope) if self._is_queued else self._open(now)
        if self.state is State.STREAMING:  # a probe: a sign of life with the link's offset
            return self.layer(Payload(0, 0, 0, 0, 0), offset)
        if self.state is State.COMMITTED:
            assert self._commit is not None
            return self._commit
        return self._message(Abort, reason=self._outcome[1])

    def _open(self, now: float) -> Open:
        job = self.opened.job
        return Open(
            **self._envelope,
            request=job.request,
            samples=self.opened.samples,
            attempt=job.attempt,
            gateway=job.sender,
            prompt=structs.replace(job.prompt, token_ids=[]),
            ids=self.opened.ids,
            remaining_ms=max(0.0, self.opened.deadline - now) * 1000,
            due_ms=(self.opened.due - now) * 1000,
            fingerprint=self._fingerprint,
            form=self.form,
        )

    def _message(self, kind: type[Abort] | type[Aborted], **fields: Any) -> Abort | Aborted:
        return kind(**self._envelope, **fields)

    def _send(self, message: Handoff, now: float) -> list[Instruction]:
        self._last_sent = now
        return [Send(message)]

    def _enter(self, state: PrefillHandoffState, now: float) -> None:
        self.state = state
        self.since = now
        self._repeat_after = self._config.repeat_ms / 1000


def answer_closed(message: Handoff, ends: tuple[str, str]) -> list[Instruction]:
    """Answers a message of a closed or forgotten handoff. `ends`: epochs of the prefill and the decode worker."""
    head = _envelope(message.handoff, ends)
    match message:
        case Grant():
            return [Send(Abort(**head, reason="closed"))]
        case Abort():
            return [Send(Aborted(**head))]
        case _:
            return []


def _envelope(handoff: int, ends: tuple[str, str]) -> dict[str, Any]:
    sender, receiver = ends
    return {"sender": sender, "receiver": receiver, "handoff": handoff}


def _failure(reason: str, retryable: bool) -> tuple[Outcome, str, bool]:
    outcome: Outcome = "done" if reason == "done" else "failed"
    return outcome, reason, retryable and reason not in FINAL_REASONS
