"""One sample of a request in progress: its state, its attempts, and its tokens in order.

Pure: no sockets, and time is an argument. Each output token is delivered once and in order, whichever worker says it
first. An attempt that fails in a way that another may not is followed by the next one, which goes on behind the tokens
that were delivered.
"""

import enum
from typing import Any, NamedTuple

from core.errors import IllegalMove
from core.ids import SequenceKey
from core.messages import HANDED_OFF, Alive, DecodeJob, Emitted, Failed, Finish, Limits, PrefillJob, Sampling, Stages

RETRIES = 4
READD_AFTER = 1.0  # s until a job whose Started is late is added again; doubles each time
ASK_AFTER = 2.0  # s of silence after which the workers are asked
GAP_AFTER = 0.1  # s that a gap may last before they are asked
GIVE_UP_AFTER = 10.0  # s without any news, though asked: the attempt has failed
EARLY = 256  # messages that may wait behind a gap


class State(enum.Enum):
    """Where a sample is; the last three are ends."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset({State.FINISHED, State.FAILED, State.CANCELLED})
_MOVES = {
    State.QUEUED: {State.QUEUED, State.PREFILL, State.DECODE} | _ENDS,
    State.PREFILL: {State.QUEUED, State.DECODE} | _ENDS,
    State.DECODE: {State.QUEUED} | _ENDS,
}


def move(state: State, to: State) -> State:
    """The only way to another state. Raises `IllegalMove` for a move that there is not, such as a second end."""
    if to not in _MOVES.get(state, ()):
        raise IllegalMove(f"a request that is {state.value} cannot become {to.value}")
    return to


class Route(NamedTuple):
    """Epochs of the workers of an attempt; `prefill` is empty on the short path."""

    prefill: str
    decode: str

    def workers(self) -> tuple[str, ...]:
        """Both, or the only one."""
        return (self.prefill, self.decode) if self.prefill else (self.decode,)

    def first(self) -> str:
        """Whose stream the job goes to."""
        return self.prefill or self.decode


class Due(enum.Enum):
    """What time asks for."""

    ADD = enum.auto()  # the job again, as the same attempt
    ASK = enum.auto()
    RETRY = enum.auto()  # nobody answers
    DEADLINE = enum.auto()


class Fate(enum.Enum):
    """What a failure means for the sample."""

    NOTHING = enum.auto()
    RETRY = enum.auto()
    FAIL = enum.auto()


class Fresh(NamedTuple):
    """Tokens that nobody has seen before, and the end if it is one."""

    tokens: list[int]
    finish: Finish | None


class Attempt:
    """One job on one pair of workers, shared by its samples: what is true of the job is true for all of them."""

    __slots__ = ("added", "adds", "number", "route", "started")

    def __init__(self, number: int, route: Route, now: float) -> None:
        self.number = number  # of the whole request, so it names one job, whichever samples that has
        self.route = route
        self.adds = 0
        self.added = now
        self.started = False  # its worker has taken the job

    def add(self, now: float) -> None:
        """The job is on its worker's stream, for the first time or again."""
        self.adds += 1
        self.added = now


class Request:
    """One sample of one request."""

    def __init__(
        self,
        key: SequenceKey,
        prompt: list[int],
        sampling: Sampling,
        limits: Limits,
        deadline: float,
        salt: str = "",
        priority: int = 0,
    ) -> None:
        self.key = key
        self.prompt = prompt
        self.sampling = sampling
        self.limits = limits
        self.deadline = deadline  # of the local clock
        self.salt = salt
        self.priority = priority
        self.state = State.QUEUED
        self.retries = 0
        self.attempt: Attempt | None = None  # None while it waits for a route
        self.heard = 0.0  # last news of it from any worker of its attempt
        self.asked = 0.0
        self.unknown: set[str] = set()  # workers that do not have it, since the last news
        self.tokens: list[int] = []  # delivered
        self.stages = Stages()
        self._early: dict[int, Emitted] = {}  # by index, behind a gap

    @property
    def ended(self) -> bool:
        """Whether it has had its one end."""
        return self.state in _ENDS

    def end(self, state: State) -> None:
        """The one end. Raises `IllegalMove` for a second."""
        assert state in _ENDS
        self.state = move(self.state, state)

    # attempts -----------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt, now: float) -> None:
        """The next attempt, its own or one with other samples."""
        self.state = move(self.state, State.QUEUED)
        self.attempt = attempt
        self.heard = self.asked = now
        self.unknown.clear()
        self._early.clear()

    def abandon(self) -> Attempt | None:
        """The attempt is over, without an end of the request; returns it, so that its workers can be told."""
        self.state = move(self.state, State.QUEUED)
        attempt, self.attempt = self.attempt, None
        return attempt

    def may_retry(self) -> bool:
        """Whether another attempt is allowed; counts it. Attempts whose job was never added are not counted."""
        self.retries += 1
        return self.retries <= RETRIES

    def job(
        self, samples: tuple[int, ...], gateway: str, decode_address: str, deadline: float, queued_at: float
    ) -> PrefillJob | DecodeJob:
        """The current attempt's job, for `samples`: prompt and delivered tokens. Times are of the server's clock."""
        assert self.attempt is not None and self.key.sample in samples
        assert not self.tokens or len(samples) == 1, "samples with tokens share no prompt"
        route = self.attempt.route
        shared: dict[str, Any] = {
            "request": self.key.request,
            "attempt": self.attempt.number,
            "sender": gateway,
            "receiver": route.first(),
            "token_ids": self.prompt + self.tokens,
            "prompt_tokens": len(self.prompt),
            "sampling": self.sampling,
            "limits": self.limits,
            "deadline": deadline,
            "queued_at": queued_at,
            "samples": samples,
            "salt": self.salt,
            "priority": self.priority,
        }
        if route.prefill:
            return PrefillJob(**shared, decode_epoch=route.decode, decode_address=decode_address)
        return DecodeJob(**shared)

    # news from workers --------------------------------------------------------------------------------------------

    def started(self, sender: str, attempt: int, now: float) -> bool:
        """The job was taken. False if this is about another attempt."""
        if not self._current(sender, attempt):
            return False
        self._news(now)
        if self.state is State.QUEUED:
            assert self.attempt is not None
            self.state = move(self.state, State.PREFILL if self.attempt.route.prefill else State.DECODE)
        return True

    def alive(self, sender: str, alive: Alive, now: float) -> Fate | None:
        """The sequence is known there, and there is nothing new. None if this is about another attempt."""
        if not self._current(sender, alive.attempt):
            return None
        assert self.attempt is not None
        if alive.state == HANDED_OFF and sender != self.attempt.route.decode:
            return self._disowned(sender)
        self._news(now)
        return Fate.NOTHING

    def emitted(self, sender: str, emitted: Emitted, now: float) -> Fresh | None:
        """What of it is new and in order; None if it belongs to another attempt."""
        if not self._current(sender, emitted.attempt):
            return None
        assert self.attempt is not None
        self._news(now)
        if emitted.stages is not None:
            self.stages = merged(self.stages, emitted.stages)
        if sender == self.attempt.route.decode and self.state is not State.DECODE:
            self.state = move(self.state, State.DECODE)
        elif self.state is State.QUEUED:
            self.state = move(self.state, State.PREFILL)
        if emitted.index > len(self.tokens):
            if len(self._early) < EARLY:
                self._early[emitted.index] = emitted
            return Fresh([], None)
        fresh: list[int] = []
        finish = self._take(emitted, fresh)
        while finish is None and (ready := self._ready()) is not None:
            finish = self._take(self._early.pop(ready), fresh)
        return Fresh(fresh, finish)

    def failed(self, sender: str, failed: Failed, now: float) -> Fate:
        """What a worker's `Failed` means."""
        if not self._current(sender, failed.attempt):
            return Fate.NOTHING
        attempt = self.attempt
        assert attempt is not None
        if failed.reason == "unknown":
            if not attempt.started:
                return Fate.NOTHING  # its job may still be on the stream, or will be added again
            return self._disowned(sender)
        if self.state is State.DECODE and sender != attempt.route.decode:
            return Fate.NOTHING  # the decode worker owns it
        return Fate.RETRY if failed.retryable or failed.reason == "cancelled" else Fate.FAIL

    def lost(self, worker: str) -> bool:
        """Whether the death of this worker ends the attempt."""
        if self.attempt is None or worker not in self.attempt.route.workers():
            return False
        return self.state is not State.DECODE or worker == self.attempt.route.decode

    # time ---------------------------------------------------------------------------------------------------------

    def due(self, now: float) -> Due | None:
        """The next thing that time asks for. After ADD call the attempt's `add`; ASK is noted here."""
        attempt = self.attempt
        if now >= self.deadline:
            return Due.DEADLINE
        if attempt is None or attempt.adds == 0:
            return None
        if now - self.heard >= GIVE_UP_AFTER:
            return Due.RETRY
        if not attempt.started:
            return Due.ADD if now - attempt.added >= READD_AFTER * 2 ** (attempt.adds - 1) else None
        patience = GAP_AFTER if self._early else ASK_AFTER
        if now - self.asked >= patience and (self._early or now - self.heard >= patience):
            self.asked = now
            return Due.ASK
        return None

    def _current(self, sender: str, attempt: int) -> bool:
        current = self.attempt
        return current is not None and current.number == attempt and sender in current.route.workers()

    def _disowned(self, sender: str) -> Fate:
        """This worker does not have it; if none of its workers has, it is lost."""
        attempt = self.attempt
        assert attempt is not None
        self.unknown.add(sender)
        owner = self.state is State.DECODE and sender == attempt.route.decode
        return Fate.RETRY if owner or self.unknown >= set(attempt.route.workers()) else Fate.NOTHING

    def _news(self, now: float) -> None:
        assert self.attempt is not None
        self.attempt.started = True
        self.heard = now
        self.unknown.clear()

    def _ready(self) -> int | None:
        return next((index for index in sorted(self._early) if index <= len(self.tokens)), None)

    def _take(self, emitted: Emitted, fresh: list[int]) -> Finish | None:
        """Moves the unseen tail of `emitted` to `tokens` and `fresh`. The end counts only with its last token."""
        unseen = emitted.token_ids[len(self.tokens) - emitted.index :]
        if emitted.index + len(emitted.token_ids) < len(self.tokens):
            return None  # a repetition of the past
        self.tokens += unseen
        fresh += unseen
        return emitted.finish


def merged(one: Stages, other: Stages) -> Stages:
    """What either knows: each of two workers measures its own part, and two samples share what was done for both."""
    return Stages(
        queue_ms=max(one.queue_ms, other.queue_ms),
        prefill_ms=max(one.prefill_ms, other.prefill_ms),
        handoff_ms=max(one.handoff_ms, other.handoff_ms),
        handoff_bytes=max(one.handoff_bytes, other.handoff_bytes),
        cached_tokens=max(one.cached_tokens, other.cached_tokens),
        grant_ms=max(one.grant_ms, other.grant_ms),
        send_ms=max(one.send_ms, other.send_ms),
        land_ms=max(one.land_ms, other.land_ms),
        exposed_ms=max(one.exposed_ms, other.exposed_ms),
        way=other.way or one.way,
    )
