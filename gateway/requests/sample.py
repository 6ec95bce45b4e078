"""Follows one sample of a request: its state, its attempts, and its output tokens in order.

Pure: no sockets, and time is an argument. Each output token is delivered once and in order, whichever worker sends it
first. After an attempt that failed, and may do better on other workers, comes the next; it goes on behind the tokens
that were delivered.
"""

import enum

from msgspec import Struct

from contracts.errors import IllegalMove
from contracts.ids import AttemptKey, SampleKey
from contracts.messages.gateway import REASON_DRAINING, STATE_HANDED_OFF, Alive, Emitted, Failed, Stages
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from contracts.scores import Scores
from contracts.slo import NO_OBJECTIVE, Objective
from gateway.requests.attempt import Attempt
from gateway.requests.delivery import Delivery
from gateway.text.stop import NO_STOPS, StopStrings
from gateway.workers.prompt_keys import PromptKeys
from pricing.route import Route

MAX_RETRIES = 4  # attempts after the first that may fail
QUEUE_CLOSED = "queue closed"  # why an attempt ends whose job's stream is gone
PLANNED_REASONS = frozenset({REASON_DRAINING, QUEUE_CLOSED})  # reasons for which an attempt ends and nobody has failed
MAX_PLANNED_RETRIES = 16  # attempts that may end for these; further ones count as failed
PLANNED_PAUSE_S = 0.05  # s before the second retry in a row for these, doubled each time: a worker's record says soon …
MAX_PLANNED_PAUSE_S = 1.0  # … that it drains, and then it is not chosen any more
READD_AFTER_S = 1.0  # s at least until a job that went without Started is added again; doubles each time
RECENT_NEWS_S = 1.0  # s for which it need not be looked at behind news of it; less than every wait below
ASK_AFTER_S = 2.0  # s of silence after which the workers are asked
GAP_AFTER_S = 0.1  # s that a gap may last before they are asked
GIVE_UP_AFTER_S = 10.0  # s without any news, though asked: the attempt has failed


class State(enum.Enum):
    """Says where a sample is; the last three are ends."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


IN_DECODE = State.DECODE  # an enum's attribute costs more than all else that is compared for a token
_END_STATES = frozenset({State.FINISHED, State.FAILED, State.CANCELLED})
_ALLOWED_MOVES = {
    State.QUEUED: {State.QUEUED, State.PREFILL, State.DECODE} | _END_STATES,
    State.PREFILL: {State.QUEUED, State.DECODE} | _END_STATES,
    State.DECODE: {State.QUEUED} | _END_STATES,
}


def move(state: State, to: State) -> State:
    """Returns the new state. Raises `IllegalMove` for a move that the table lacks, such as a second end."""
    if to not in _ALLOWED_MOVES.get(state, ()):
        raise IllegalMove(f"a sample that is {state.value} cannot become {to.value}")
    return to


class Due(enum.Enum):
    """Names what a sample needs because time has passed."""

    ADD = enum.auto()  # put the job on its stream again, as the same attempt
    ASK = enum.auto()  # ask its workers for tokens
    RETRY = enum.auto()  # give the attempt up: nobody answers
    DEADLINE = enum.auto()  # fail it: its time is over


class Fate(enum.Enum):
    """Says what a failure means for the sample."""

    NOTHING = enum.auto()
    RETRY = enum.auto()
    FAIL = enum.auto()


class AdmittedPrompt(Struct, frozen=True):
    """Holds what the samples of a request share: the checked prompt, and how it is to be answered."""

    prompt: Prompt
    sampling: Sampling
    limits: Limits
    stops: StopStrings = NO_STOPS
    samples: int = 1  # answers that are wanted
    stop_ids: tuple[int, ...] = ()  # the client's own of `limits.stop_token_ids`: it is told which one ended an answer
    markers: tuple[str, ...] = ()  # special tokens that are written out, which are left away otherwise
    keys: PromptKeys = {}  # of the prompt's full blocks, by which workers tell whose KV they have
    with_stop: bool = False  # what ended the answer is part of its text
    objective: Objective = NO_OBJECTIVE  # what is wanted of its times, from its receipt on
    promise: Objective = NO_OBJECTIVE  # of that, what other requests are held back for
    reserved: int = 0  # tokens of prompt and answers that are counted for its caller until they are known
    key: str = ""  # the public part of the API key that it was asked with; empty where there are none


class Sample:
    """Follows one sample of a request through its attempts to its one end."""

    def __init__(self, key: SampleKey, admitted: AdmittedPrompt, deadline: float) -> None:
        self.key = key
        self.admitted = admitted
        self.prompt = admitted.prompt
        self.deadline = deadline  # local clock, s
        self.state = State.QUEUED
        self.reason = ""  # of its end, a stable word
        self.retries = 0  # attempts that failed
        self.planned = 0  # attempts that ended because somebody had planned it
        self.attempt: Attempt | None = None  # None while it waits for a route
        self.route = Route("", "")  # of its last attempt
        self.counted: set[str] = set()  # epochs of the workers in whose load it is counted
        self.heard = 0.0  # local time of the last news of it from any worker of its attempt, s
        self.asked = 0.0  # local time of the last Ask, s
        self.unknown: set[str] = set()  # epochs of workers that have said, since the last news, that they lack it
        self.stages = Stages()
        self._delivery = Delivery()
        self.tokens = self._delivery.tokens  # delivered output tokens

    @property
    def ended(self) -> bool:
        return self.state in _END_STATES

    @property
    def gap(self) -> bool:
        """Returns whether tokens are here whose predecessors are not."""
        return self._delivery.gap

    @property
    def prompt_scores(self) -> Scores | None:
        """Returns what came of the prompt's scores with its first token; of several samples only one has them."""
        return self._delivery.prompt_scores

    @property
    def attempt_key(self) -> AttemptKey:
        """Names its attempt; it must have one."""
        assert self.attempt is not None
        return AttemptKey(self.key.request, self.key.sample, self.attempt.number)

    def end(self, state: State, reason: str) -> None:
        """Ends it. Raises `IllegalMove` the second time."""
        assert state in _END_STATES
        self.state = move(self.state, state)
        self.reason = reason

    # attempts -----------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt, now: float) -> None:
        """Begins the next attempt, its own or one that it shares with other samples."""
        self.state = move(self.state, State.QUEUED)
        self.attempt = attempt
        self.route = attempt.route
        self.heard = self.asked = now
        self.unknown.clear()
        self._delivery.forget_early()

    def abandon(self) -> Attempt | None:
        """Gives its attempt up without an end; returns it, so that the workers can be told."""
        self.state = move(self.state, State.QUEUED)
        attempt, self.attempt = self.attempt, None
        return attempt

    def may_retry(self) -> bool:
        """Counts a retry; returns whether it is allowed. Attempts whose job was never added are not counted."""
        self.retries += 1
        return self.retries <= MAX_RETRIES

    def moves_on(self, reason: str) -> float | None:
        """Returns the s after which it may try again at no cost, because somebody planned what ended its attempt.

        None where it has failed: for another reason, or for such ones too often.
        """
        if reason not in PLANNED_REASONS or self.planned >= MAX_PLANNED_RETRIES:
            return None
        self.planned += 1
        return min(PLANNED_PAUSE_S * 2.0 ** (self.planned - 2), MAX_PLANNED_PAUSE_S) if self.planned > 1 else 0.0

    @property
    def length(self) -> int:
        """Counts the tokens that the next attempt begins with: the prompt's, and those that were delivered."""
        return len(self.prompt.token_ids) + len(self.tokens)

    def ids(self, first: int, end: int) -> list[int]:
        prompt = self.prompt.token_ids
        behind = len(prompt)
        return prompt[first:end] + self.tokens[max(0, first - behind) : max(0, end - behind)]

    # news from workers --------------------------------------------------------------------------------------------

    def started(self, sender: str, attempt: int, now: float) -> bool:
        """Notes that the job was taken. Returns False if this is about another attempt."""
        if not self._current(sender, attempt):
            return False
        self._news(now)
        if self.state is State.QUEUED:
            assert self.attempt is not None
            self.state = move(self.state, State.PREFILL if self.attempt.route.prefill else State.DECODE)
        return True

    def alive(self, sender: str, alive: Alive, now: float) -> Fate | None:
        """Notes that a worker has the sequence but nothing new. Returns None if this is about another attempt."""
        if not self._current(sender, alive.key.attempt):
            return None
        assert self.attempt is not None
        if alive.state == STATE_HANDED_OFF and sender != self.attempt.route.decode:
            return self._disowned(sender)
        self._news(now)
        return Fate.NOTHING

    def emitted(self, sender: str, emitted: Emitted, now: float) -> Emitted | None:
        """Takes tokens; returns the new ones, in order, or None if they belong to another attempt."""
        attempt = self.attempt
        if attempt is None or attempt.number != emitted.key.attempt:
            return None
        if self.state is not IN_DECODE or sender != attempt.route.decode:  # before the middle of the answer
            if not self._current(sender, attempt.number):
                return None
            attempt.started = True
            if sender == attempt.route.decode:
                self.state = move(self.state, State.DECODE)
            elif self.state is State.QUEUED:
                self.state = move(self.state, State.PREFILL)
        self.heard = now
        if self.unknown:
            self.unknown.clear()
        if emitted.stages is not None:
            self.stages = merged(self.stages, emitted.stages)
        return self._delivery.take(emitted)

    def failed(self, sender: str, failed: Failed, now: float) -> Fate:
        """Returns what a worker's `Failed` means for this sample."""
        if not self._current(sender, failed.key.attempt):
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
        if self.attempt is None or worker not in self.attempt.route.workers():
            return False
        return self.state is not State.DECODE or worker == self.attempt.route.decode

    # time ---------------------------------------------------------------------------------------------------------

    def runs_well(self, now: float) -> bool:
        """Returns whether nothing can be due: there was news of it just now, without a gap."""
        return self.state is State.DECODE and now - self.heard < RECENT_NEWS_S and now < self.deadline and not self.gap

    def due(self, now: float, in_line: bool = False) -> Due | None:
        """Returns what is due at `now`, if anything. After ADD call the attempt's `add`; ASK is noted here.

        `in_line` says that its job waits on the stream of a worker that lives: nothing has failed, however long that
        takes, and nothing is asked.
        """
        attempt = self.attempt
        if now >= self.deadline:
            return Due.DEADLINE
        if attempt is None or attempt.adds == 0:
            return None
        if in_line:
            self.heard = now
            return None
        if now - self.heard >= GIVE_UP_AFTER_S:
            return Due.RETRY
        if not attempt.started:
            return Due.ADD if now - attempt.added >= READD_AFTER_S * 2 ** (attempt.adds - 1) else None
        patience = GAP_AFTER_S if self.gap else ASK_AFTER_S
        if now - self.asked >= patience and (self.gap or now - self.heard >= patience):
            self.asked = now
            self.unknown.clear()  # a handoff may have passed since the last answers: only those to one question agree
            return Due.ASK
        return None

    def _current(self, sender: str, attempt: int) -> bool:
        current = self.attempt
        if current is None or current.number != attempt:
            return False
        route = current.route
        return sender == route.decode or (sender == route.prefill and sender != "")

    def _disowned(self, sender: str) -> Fate:
        """Notes that this worker does not have it; if none of its workers has, it is lost."""
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


def merged(one: Stages, other: Stages) -> Stages:
    """Returns the timings and sizes that either of two reports has.

    Each of two workers measures its own part of a sequence's way, and two samples share what was done for both, so in
    every field the larger figure is the one that somebody measured.
    """
    larger = {name: max(getattr(one, name), getattr(other, name)) for name in Stages.__struct_fields__ if name != "way"}
    return Stages(**larger, way=other.way or one.way)
