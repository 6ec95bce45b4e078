"""Shows the I/O thread how the engine thread stands at any moment: plain attributes, each replaced as a whole."""

import time
from typing import NamedTuple

from core.redis.records import Load

PATIENCE = 10.0  # a round is overdue after this multiple of the usual time …
LEAST = 1.0  # … but not before this many seconds


class Activity(NamedTuple):
    """Tells in which of its rounds the engine thread is, and what it does there. Times: s, of time.monotonic."""

    round: int
    began: float  # the round
    doing: str  # for people, such as `collecting a step`
    since: float


class EngineStatus:
    """Tells load, whether the worker drains, and what the engine thread does. Written by the engine thread only.

    A round is all that the engine thread does between two looks at its inbox, where it may wait as long as it likes:
    events, plan, moves, launch, and the step that it collects, also where another one is in flight.
    """

    def __init__(self, longest: float = 0.0) -> None:
        """Begins at rest. `longest`: s that the largest step should take, as far as the start has measured it."""
        self.load = Load()
        self.draining = False
        self.activity: Activity | None = None  # None while it waits for events
        self._longest = longest
        self._usual = 0.1  # s that a round with a step takes, as a moving average
        self._rounds = 0
        self._stepped = False  # this round has collected a step

    def begins(self, doing: str) -> None:
        """Notes that a round begins."""
        now = time.monotonic()
        self._rounds += 1
        self.activity = Activity(self._rounds, now, doing, now)

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
        return max(LEAST, PATIENCE * max(self._usual, self._longest))

    def round_due_ms(self) -> float:
        """Returns the ms until the round is overdue, negative once it is; 0 while the engine thread waits."""
        activity = self.activity
        if activity is None:
            return 0.0
        return (activity.began + self.patience() - time.monotonic()) * 1000
