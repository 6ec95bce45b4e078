"""Tries by measuring how many guesses pay at a batch's size: what steps of each count take, for the tokens they give.

What guesses cost is more than rows: passes of whoever proposes, looks, what is done for each row. So it is not
predicted but tried, as arms of a bandit: most steps have the count whose tokens came fastest, now and then a few have
a neighbouring one. How often is bounded by what it costs: a count that is `worse` by half is tried for a stretch of
steps as seldom as makes all such stretches together cost no more than `BUDGET` of the time, and one that is about even
more often (after the idea of Agrawal and Goyal, 2012, that what is clear need not be tried). Batches are told apart by
powers of 2. Seconds are relative to those predicted for the step without guesses, so that a longer context, another
batch of about that size or a busy machine do not pass for guesses; one step that stood still counts little.
"""

from collections.abc import Sequence
from typing import NamedTuple

STRETCH = 12
"""Steps of a try, the first of which is not measured: it still has what the count before it made."""
BUDGET = 0.01
"""Share of the time that tries may cost in the long run."""
SELDOM, OFTEN = 1 << 14, 128
"""Steps between two tries of a count, at most and at least; it is the least after the first, and may double then."""
MORE, FEWER = 1.05, 1.01
"""How much faster tokens have to come by more guesses, or by fewer, for that to become the usual count."""
HOPELESS = 1.5
"""A try ends early where tokens take so many times longer than usual, after `ENOUGH` steps."""
ENOUGH = 4
LOOK_EVERY = 8
"""Steps between two looks at whether it is time for a try: one takes some microseconds."""
KEPT = 0.98
"""What a step still weighs when the next one of its count has come: some fifty count."""
FADED = 0.5
"""What all steps before still weigh when a count is tried again."""
SLOWEST = 2.0
"""A step counts as at most so many times slower than others of its count."""


class Tried(NamedTuple):
    """Says what a step tries."""

    size: int  # of the batch: the number of its bits
    arm: int  # place of its count among those that there are
    settled: bool  # the step before had that count as well


class Trial:
    """Chooses for each step how many guesses a sequence may have at most. It knows no clock."""

    def __init__(self, counts: Sequence[int]) -> None:
        """Chooses among `counts`, in ascending order, of which the first is 0."""
        assert counts[0] == 0, "without guesses, what is there to compare with"
        self.counts = tuple(counts)
        self._sizes: dict[int, _Size] = {}
        self._last = Tried(0, 0, False)

    def begin(self, sequences: int, steps: int = 1) -> Tried:
        """Chooses for a step in which so many sequences decode, `steps` behind the last one that it was asked for."""
        bits = (sequences - 1).bit_length()
        size = self._sizes.get(bits)
        if size is None:
            size = self._sizes[bits] = _Size(len(self.counts))
        arm = size.choose(steps)
        self._last = Tried(bits, arm, arm == self._last.arm)
        return self._last

    def learn(self, tried: Tried, seconds: float, tokens: float) -> None:
        """Takes note of what a step of nothing but decodes took, relative to one without guesses.

        `tokens` are those of a sequence, on average.
        """
        if tried.settled:
            self._sizes[tried.size].learn(tried.arm, seconds, tokens)

    def guess_seconds(self, tried: Tried) -> float:
        """Returns what a guess adds to a sequence's share of a step, relative to that; 0: that is not known yet.

        It is so much if all sequences have the count, and less if some are left out, which are the sooner back for it.
        """
        size = self._sizes[tried.size]
        none, some = size.arms[0], size.arms[tried.arm]
        if tried.arm in (0, size.tries) or not none.weight:
            return 0.0
        return max(0.0, some.mean_seconds - none.mean_seconds) / self.counts[tried.arm]


class _Arm:
    """Sums up what steps of one count took and gave, older ones with less weight."""

    __slots__ = ("due", "lost", "seconds", "tokens", "weight")

    def __init__(self) -> None:
        self.weight = self.seconds = self.tokens = 0.0
        self.due = 0  # step of this size at which it is tried again
        self.lost = 0  # tries since it was the best

    @property
    def mean_seconds(self) -> float:
        """Returns what one of its steps takes."""
        return self.seconds / self.weight

    @property
    def token_seconds(self) -> float:
        """Returns what a token takes."""
        return self.seconds / self.tokens

    def fade(self, kept: float) -> None:
        """Forgets some of what is known."""
        self.weight *= kept
        self.seconds *= kept
        self.tokens *= kept

    def learn(self, seconds: float, tokens: float) -> None:
        if self.weight > ENOUGH:
            seconds = min(seconds, SLOWEST * self.mean_seconds)
        self.fade(KEPT)
        self.weight += 1
        self.seconds += seconds
        self.tokens += tokens


class _Size:
    """Tries counts with batches of about one size."""

    def __init__(self, arms: int) -> None:
        self.arms = [_Arm() for _ in range(arms)]
        self._usual = 0  # the arm that is best, as far as is known
        self._now = 0
        self._left = STRETCH  # steps of the stretch
        self._measured = 0  # of its steps
        self._steps = 0
        self._next_look = 0

    def choose(self, steps: int) -> int:
        """Returns the arm of a step, so many behind the last one."""
        self._steps += steps
        if self._left > 0:
            self._left -= 1
            return self._now
        if self._now == self._usual and self._steps < self._next_look:
            return self._now
        self._next_look = self._steps + LOOK_EVERY
        tried, self._usual = self._now, self._best()
        if tried != self._usual:
            self._put_off(tried)
        self._now = self._usual
        for arm in self._neighbours():
            if self.arms[arm].due <= self._steps:
                self.arms[arm].fade(FADED)
                self._now, self._left, self._measured = arm, STRETCH - 1, 0
                self.arms[arm].due = self._steps + OFTEN
                break
        return self._now

    @property
    def tries(self) -> int:
        """Returns the arm that is tried; 0: the usual one goes on."""
        return self._now if self._now != self._usual else 0

    def learn(self, arm: int, seconds: float, tokens: float) -> None:
        """Takes note of a step, and ends a try that is as bad as can be."""
        one = self.arms[arm]
        one.learn(seconds, tokens)
        usual = self.arms[self._usual]
        if arm == self._now != self._usual and usual.tokens:
            self._measured += 1
            if self._measured >= ENOUGH and one.token_seconds > HOPELESS * usual.token_seconds:
                self._left = 0

    def _best(self) -> int:
        best = self._usual
        for number, arm in enumerate(self.arms):
            usual = self.arms[best]
            better = MORE if number > best else FEWER
            if arm.tokens and usual.tokens and better * arm.token_seconds < usual.token_seconds:
                best = number
        if best != self._usual:
            self.arms[best].lost = 0
        return best

    def _neighbours(self) -> list[int]:
        """Returns those that may be tried: none first; one count below the usual one and two above it."""
        near = [self._usual - 1, self._usual + 1, self._usual + 2]
        return [arm for arm in dict.fromkeys((0, *near)) if 0 <= arm < len(self.arms) and arm != self._usual]

    def _put_off(self, arm: int) -> None:
        """Settles when an arm that was tried is tried again, by what that costs."""
        usual, tried = self.arms[self._usual], self.arms[arm]
        if tried.tokens and usual.tokens:
            lost = tried.mean_seconds - tried.tokens / tried.weight * usual.token_seconds  # in one step of it
            steps = STRETCH * lost / usual.mean_seconds * len(self._neighbours()) / BUDGET
            tried.due = self._steps + int(max(OFTEN, min(SELDOM, steps, OFTEN << min(tried.lost, 8))))
            tried.lost += 1
