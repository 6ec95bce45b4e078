"""One sample of a request: its state, its attempts, and its output tokens in order.

Pure: no sockets, and time is an argument. Each output token is delivered once and in order, whichever worker sends it
first. A failed attempt may be followed by another one on other workers, which continues after the delivered tokens.
"""

import enum
from collections.abc import Sequence

from msgspec import Struct, structs

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
from gateway.workers.prompt_keys import NO_KEYS, PromptKeys
from pricing.routes.route import Route

MAX_RETRIES = 4  # number of failed attempts after which the sample fails, less one
QUEUE_CLOSED = "queue closed"  # end of an attempt whose job's stream is gone
PLANNED_REASONS = frozenset({REASON_DRAINING, QUEUE_CLOSED})  # an attempt ended as planned, without a failure
MAX_PLANNED_RETRIES = 16  # attempts with a planned end; further attempts count as failed
PLANNED_PAUSE_S = 0.05  # s before the second planned retry, doubled each time: a draining worker's record …
MAX_PLANNED_PAUSE_S = 1.0  # … is updated soon, and then the worker is not chosen any more
READD_AFTER_S = 1.0  # s until a job without a Started message is added again; doubles each time
RECENT_NEWS_S = 1.0  # s after news in which a sample is not checked; less than every wait below
ASK_AFTER_S = 2.0  # s of silence after which the workers are asked
GAP_AFTER_S = 0.1  # s that a gap may last before the workers are asked
GIVE_UP_AFTER_S = 10.0  # s without news despite questions: the attempt has failed


class State(enum.Enum):
    """State of a sample; the last three are ends."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


IN_DECODE = State.DECODE  # reading an enum's attribute is slow, and this is compared for every token
_END_STATES = (State.FINISHED, State.FAILED, State.CANCELLED)  # a set would hash an enum's member, which is slow
_ALLOWED_MOVES = {
    State.QUEUED: (State.QUEUED, State.PREFILL, State.DECODE, *_END_STATES),
    State.PREFILL: (State.QUEUED, State.DECODE, *_END_STATES),
    State.DECODE: (State.QUEUED, *_END_STATES),
}


def move(state: State, to: State) -> State:
    """Returns the new state. Raises `IllegalMove` for a move that the table lacks, such as a second end."""
    if to not in _ALLOWED_MOVES.get(state, ()):
        raise IllegalMove(f"a sample that is {state.value} cannot become {to.value}")
    return to


class Due(enum.Enum):
    """An action that is due for a sample."""

    ADD = enum.auto()  # put the job on its stream again, as the same attempt
    ASK = enum.auto()  # ask its workers for tokens
    RETRY = enum.auto()  # give the attempt up: no worker answers
    DEADLINE = enum.auto()  # fail the sample: its deadline has passed


class Fate(enum.Enum):
    """The consequence of a failure for the sample."""

    NOTHING = enum.auto()
    RETRY = enum.auto()
    FAIL = enum.auto()


class AdmittedPrompt(Struct, frozen=True):
    """A checked prompt, and how it is to be answered; shared by the samples of a request."""

    prompt: Prompt
    sampling: Sampling
    limits: Limits
    stops: StopStrings = NO_STOPS
    samples: int = 1  # number of wanted answers
    stop_ids: tuple[int, ...] = ()  # the client's part of `limits.stop_token_ids`, reported when one ends an answer
    markers: tuple[str, ...] = ()  # special tokens that appear in the text; others are omitted
    keys: PromptKeys = NO_KEYS  # keys of the prompt's full blocks in the workers' prefix caches
    with_stop: bool = False  # the stop string is part of the text
    objective: Objective = NO_OBJECTIVE  # limits of its times, from its receipt on
    promise: Objective = NO_OBJECTIVE  # the part of `objective` for which other requests are held back
    reserved: int = 0  # tokens of prompt and answers that are charged to its caller until the true number is known
    key: str = ""  # public part of the request's API key; empty if the gateway has no keys
    pooled: bool = False  # a vector or score of the text is wanted, and no tokens


class Sample:
    """One sample of a request, through its attempts to its end."""

    def __init__(self, key: SampleKey, admitted: AdmittedPrompt, deadline: float) -> None:
        self.key = key
        self.admitted = admitted
        self.prompt = admitted.prompt
        self.deadline = deadline  # local clock, s
        self.state = State.QUEUED
        self.reason = ""  # reason of the end, a stable word
        self.retries = 0  # attempts that failed
        self.planned = 0  # attempts with a planned end
        self.attempt: Attempt | None = None  # None while it waits for a route
        self.route = Route("", "")  # of its last attempt
        self.counted: set[str] = set()  # epochs of the workers in whose load it is counted
        self.heard = 0.0  # local time of the last news from a worker of its attempt, s
        self.asked = 0.0  # local time of the last Ask, s
        self.unknown: set[str] = set()  # epochs of workers that have disowned it since the last news
        self.stages = Stages()
        self._delivery = Delivery()
        self.tokens = self._delivery.tokens  # delivered output tokens

    @property
    def ended(self) -> bool:
        return self.state in _END_STATES

    @property
    def gap(self) -> bool:
        return self._delivery.gap

    @property
    def prompt_scores(self) -> Scores | None:
        """Prompt scores, received with the first token; only one of a request's samples has them."""
        return self._delivery.prompt_scores

    @property
    def vector(self) -> bytes:
        """The result of a text that is pooled, fp32; empty before its end."""
        return self._delivery.vector

    @property
    def attempt_key(self) -> AttemptKey:
        assert self.attempt is not None
        return AttemptKey(self.key.request, self.key.sample, self.attempt.number)

    def end(self, state: State, reason: str) -> None:
        """Ends the sample. Raises `IllegalMove` the second time."""
        assert state in _END_STATES
        self.state = move(self.state, state)
        self.reason = reason

    # attempts -----------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt, now: float) -> None:
        self.state = move(self.state, State.QUEUED)
        self.attempt = attempt
        self.route = attempt.route
        self.heard = self.asked = now
        self.unknown.clear()
        self._delivery.forget_early()

    def abandon(self) -> Attempt | None:
        """Gives the attempt up without ending the sample; returns the attempt, for notices to its workers."""
        self.state = move(self.state, State.QUEUED)
        attempt, self.attempt = self.attempt, None
        return attempt

    def may_retry(self) -> bool:
        """Counts a failed attempt; returns whether a further attempt is allowed.

        Jobs that were never added do not count.
        """
        self.retries += 1
        return self.retries <= MAX_RETRIES

    def moves_on(self, reason: str) -> float | None:
        """Returns the seconds until a free retry after a planned end of the attempt.

        None if the attempt has failed: for another reason, or after too many planned ends.
        """
        if reason not in PLANNED_REASONS or self.planned >= MAX_PLANNED_RETRIES:
            return None
        self.planned += 1
        return min(PLANNED_PAUSE_S * 2.0 ** (self.planned - 2), MAX_PLANNED_PAUSE_S) if self.planned > 1 else 0.0

    @property
    def length(self) -> int:
        return len(self.prompt.token_ids) + len(self.tokens)

    def ids(self, first: int, end: int) -> Sequence[int]:
        """Returns ids of the prompt and of the emitted tokens behind it."""
        prompt, behind = self.prompt.token_ids[first:end], len(self.prompt.token_ids)
        emitted = self.tokens[max(0, first - behind) : max(0, end - behind)]
        return [*prompt, *emitted] if emitted else prompt

    # news from workers --------------------------------------------------------------------------------------------

    def started(self, sender: str, attempt: int, now: float) -> bool:
        """Records that the job was taken. Returns False for a message about another attempt."""
        if not self._current(sender, attempt):
            return False
        self._news(now)
        if self.state is State.QUEUED:
            assert self.attempt is not None
            self.state = move(self.state, State.PREFILL if self.attempt.route.prefill else State.DECODE)
        return True

    def alive(self, sender: str, alive: Alive, now: float) -> Fate | None:
        """Records that a worker has the sequence but no new tokens.

        Returns None for a message about another attempt.
        """
        if not self._current(sender, alive.key.attempt):
            return None
        assert self.attempt is not None
        if alive.state == STATE_HANDED_OFF and sender != self.attempt.route.decode:
            return self._disowned(sender)
        self._news(now)
        return Fate.NOTHING

    def emitted(self, sender: str, emitted: Emitted, now: float) -> Emitted | None:
        """Takes tokens; returns the new tokens, in order, or None for a message about another attempt."""
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
        """Returns whether nothing can be due: recent news, and no gap."""
        return self.state is State.DECODE and now - self.heard < RECENT_NEWS_S and now < self.deadline and not self.gap

    def due(self, now: float, in_line: bool = False) -> Due | None:
        """Returns the action that is due at `now`, if any. After ADD call the attempt's `add`; ASK is recorded here.

        `in_line`: the job waits on the stream of a live worker. Then nothing has failed, however long it takes, and
        nothing is asked.
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
            # a handoff may have ended since the last answers: only answers to the same question are consistent
            self.unknown.clear()
            return Due.ASK
        return None

    def _current(self, sender: str, attempt: int) -> bool:
        current = self.attempt
        if current is None or current.number != attempt:
            return False
        route = current.route
        return sender == route.decode or (sender == route.prefill and sender != "")

    def _disowned(self, sender: str) -> Fate:
        """Records that this worker lacks the sample; if all workers of the attempt lack it, it is retried."""
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
    """Returns the timings and sizes of two reports.

    Each worker measures its own part of a sequence's way, and samples share common work, so the larger figure of each
    field is the measured one.
    """
    larger = map(max, structs.astuple(one)[:-1], structs.astuple(other)[:-1])
    return structs.replace(Stages(*larger), way=other.way or one.way)
