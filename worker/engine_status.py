"""Shows the I/O thread how the engine thread stands at any moment: plain attributes, each replaced as a whole."""

import time
from typing import NamedTuple

from msgspec import structs

from infra.redis.records import WorkerLoad
from pricing.backlog import Backlog
from pricing.steps import pairs_of

OVERDUE_FACTOR = 10.0  # a round is overdue after this multiple of the usual time …
MIN_OVERDUE_S = 1.0  # … but not before this many seconds


class EngineActivity(NamedTuple):
    """Tells in which of its rounds the engine thread is, and what it does there. Times: s, of time.monotonic."""

    round: int
    began: float  # the round
    doing: str  # for people, such as `collecting a step`
    since: float


class PromptCounts(NamedTuple):
    """Counts the prompts that have passed a place, since the start."""

    prompts: int = 0
    tokens: int = 0
    pairs: float = 0.0  # of such a token and one that it attends to

    def and_prompt(self, tokens: int) -> "PromptCounts":
        """Returns the same with one more prompt."""
        return PromptCounts(self.prompts + 1, self.tokens + tokens, self.pairs + pairs_of(0, tokens))


class ShownLoad(NamedTuple):
    """Holds what the engine thread has shown at one moment."""

    load: WorkerLoad
    received: PromptCounts  # prompts that are in the load, or were
    at: float  # s, of time.monotonic


class EngineStatus:
    """Tells load, whether the worker drains, and what the engine thread does. Written by the engine thread only.

    But for `posted`, which is the I/O thread's: prompts on their way to the engine are part of what is before it.

    A round is all that the engine thread does between two looks at its inbox, where it may wait as long as it likes:
    events, plan, moves, launch, and the step that it collects, also where another one is in flight.
    """

    def __init__(self, longest: float = 0.0) -> None:
        """Begins at rest. `longest`: s that the largest step should take, as far as the start has measured it."""
        self._shown = ShownLoad(WorkerLoad(), PromptCounts(), time.monotonic())
        self.posted = PromptCounts()  # prompts that the I/O thread has posted
        self.draining = False
        self.activity: EngineActivity | None = None  # None while it waits for events
        self._longest = longest
        self._usual = 0.1  # s that a round with a step takes, as a moving average
        self._rounds = 0
        self._stepped = False  # this round has collected a step

    @property
    def load(self) -> WorkerLoad:
        """Returns what the worker holds, and has done, as it was last shown."""
        return self._shown.load

    def shows(self, load: WorkerLoad, received: PromptCounts) -> None:
        """Takes what the worker holds now, when it has received these of the prompts that were posted."""
        self._shown = ShownLoad(load, received, time.monotonic())

    def backlog(self) -> Backlog:
        """Returns what is before the engine now: as it was last shown, and what was posted since."""
        (load, received, at), posted = self._shown, self.posted
        backlog = load.backlog
        return structs.replace(
            backlog,
            prompts=backlog.prompts + posted.prompts - received.prompts,
            tokens=backlog.tokens + posted.tokens - received.tokens,
            pairs=backlog.pairs + posted.pairs - received.pairs,
            age_ms=(time.monotonic() - at) * 1000,
        )

    def begins(self, doing: str) -> None:
        """Notes that a round begins."""
        now = time.monotonic()
        self._rounds += 1
        self.activity = EngineActivity(self._rounds, now, doing, now)

    def enters(self, doing: str) -> None:
        """Notes what the round comes to next."""
        if self.activity is not None:
            self.activity = self.activity._replace(doing=doing, since=time.monotonic())

    def step_ended(self) -> None:
        """Notes that this round has collected a step."""
        self._stepped = True

    def rests(self) -> None:
        """Notes that the round is done, and learns from what it took, if a step was part of it."""
        if self.activity is not None and self._stepped:
            self._usual += 0.1 * (time.monotonic() - self.activity.began - self._usual)
        self.activity, self._stepped = None, False

    def patience(self) -> float:
        """Returns the s after which a round is overdue: well beyond any that was measured."""
        return max(MIN_OVERDUE_S, OVERDUE_FACTOR * max(self._usual, self._longest))

    def round_due_ms(self) -> float:
        """Returns the ms until the round is overdue, negative once it is; 0 while the engine thread waits."""
        activity = self.activity
        if activity is None:
            return 0.0
        return (activity.began + self.patience() - time.monotonic()) * 1000
