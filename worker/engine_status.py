"""The engine thread's state for the I/O thread: plain attributes, each replaced as a whole."""

import time
from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from infra.redis.worker_load import WorkerLoad
from pricing.routes.backlog import Backlog
from pricing.step_costs.steps import pairs_of

OVERDUE_FACTOR = 10.0  # a round is overdue after this multiple of the usual time …
MIN_OVERDUE_S = 1.0  # … but not before this time


class EngineActivity(NamedTuple):
    """The current work of the engine thread. Times: s, of time.monotonic."""

    round: int
    began: float  # start of the round
    doing: str  # for people, such as `collecting a step`
    since: float


class PromptCounts(NamedTuple):
    """Prompts that passed a point, since the start."""

    prompts: int = 0
    tokens: int = 0
    pairs: float = 0.0  # token pairs (query, attended token)

    def and_prompt(self, tokens: int) -> "PromptCounts":
        return PromptCounts(self.prompts + 1, self.tokens + tokens, self.pairs + pairs_of(0, tokens))


class ShownLoad(NamedTuple):
    """A load that the engine thread has shown."""

    load: WorkerLoad
    received: PromptCounts  # prompts included in the load, now or earlier
    at: float  # s, of time.monotonic


class EngineStatus:
    """Load, draining, and activity of the engine thread, which alone writes it, except for `posted`.

    The I/O thread writes `posted`: prompts on their way to the engine are part of its backlog.

    A round is the work between two reads of the inbox, where the thread may wait: events, plan, moves, launch, and the
    collected step, also with another step in flight.
    """

    def __init__(self, longest: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`longest`: expected seconds of the largest step, as measured at the start."""
        self._monotonic = monotonic
        self._shown = ShownLoad(WorkerLoad(), PromptCounts(), self._monotonic())
        self.posted = PromptCounts()  # prompts that the I/O thread has posted
        self.draining = False
        self.activity: EngineActivity | None = None  # None while it waits for events
        self._longest = longest
        self._usual = 0.1  # moving average of a round with a step, s
        self._rounds = 0
        self._stepped = False  # this round has collected a step

    @property
    def load(self) -> WorkerLoad:
        return self._shown.load

    def shows(self, load: WorkerLoad, received: PromptCounts, at: float | None = None) -> None:
        """Shows a load, as it was `at` a time of the monotonic clock; None: now."""
        self._shown = ShownLoad(load, received, self._monotonic() if at is None else at)

    def backlog(self) -> Backlog:
        """Returns the last shown backlog, plus prompts posted since."""
        load, received, at = self._shown
        return self.with_posted(load.backlog, received, at)

    def with_posted(self, backlog: Backlog, received: PromptCounts, at: float) -> Backlog:
        """Returns a backlog as it was `at` a time of the monotonic clock, plus prompts posted behind `received`."""
        posted = self.posted
        return structs.replace(
            backlog,
            prompts=backlog.prompts + posted.prompts - received.prompts,
            tokens=backlog.tokens + posted.tokens - received.tokens,
            pairs=backlog.pairs + posted.pairs - received.pairs,
            age_ms=(self._monotonic() - at) * 1000,
        )

    def begins(self, doing: str) -> None:
        now = self._monotonic()
        self._rounds += 1
        self.activity = EngineActivity(self._rounds, now, doing, now)

    def enters(self, doing: str) -> None:
        if self.activity is not None:
            self.activity = self.activity._replace(doing=doing, since=self._monotonic())

    def step_ended(self) -> None:
        self._stepped = True

    def rests(self) -> None:
        if self.activity is not None and self._stepped:
            self._usual += 0.1 * (self._monotonic() - self.activity.began - self._usual)
        self.activity, self._stepped = None, False

    def patience(self) -> float:
        """Returns the seconds after which a round is overdue."""
        return max(MIN_OVERDUE_S, OVERDUE_FACTOR * max(self._usual, self._longest))

    def round_due_ms(self) -> float:
        """Returns the ms until the round is overdue, negative after that; 0 while the engine thread waits."""
        activity = self.activity
        if activity is None:
            return 0.0
        return (activity.began + self.patience() - self._monotonic()) * 1000
