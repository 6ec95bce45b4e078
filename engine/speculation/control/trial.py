"""Tries by measuring how many guesses pay at a batch's size: what steps of each count take, for the tokens they give.

What guesses cost is more than rows: passes of whoever proposes, looks, what is done for each row. So it is not
predicted but tried, as arms of a bandit: most steps have the count whose tokens come fastest, now and then a few have
another. Only seconds are measured here, since a stretch of a few steps tells them to some percent; the tokens of so few
steps would tell nothing, so the caller says how many are to be expected. A count that was never tried is taken to
lie on the line between its neighbours, so few have to be tried. How often the others are is bounded by what it costs: a
count that is worse by half is tried for a stretch of steps as seldom as makes all such stretches together cost no more
than `BUDGET` of the time, and one that is about even more often (after the idea of Agrawal and Goyal, 2012, that what
is clear need not be tried). Batches are told apart by powers of 2. Seconds are relative to those predicted for the step
without guesses, so that a longer context, another batch of about that size or a busy machine do not pass for guesses;
one step that stood still counts little.
"""

from collections.abc import Sequence
from typing import NamedTuple

STRETCH = 12
"""Steps of a try, the first of which is not measured: it still has what the count before it made."""
BUDGET = 0.01
"""Share of the time that tries may cost in the long run."""
SELDOM, OFTEN = 1 << 14, 128
"""Steps between two tries of a count, at most and at least; it is the least after the first, and may double then."""
MORE, FEWER = 1.03, 1.01
"""How much faster tokens have to come by more guesses, or by fewer, for that to become the usual count."""
HOPELESS = 1.5
"""A try ends early where tokens take so many times longer than usual, after `ENOUGH` steps."""
ENOUGH = 4
FARTHER = 3
"""Counts by which the usual one goes beyond those that were tried, at most."""
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

    def begin(self, sequences: int, tokens: Sequence[float], steps: int = 1) -> Tried:
        """Chooses for a step in which so many sequences decode, `steps` behind the last one that it was asked for.

        `tokens` are those that a sequence is expected to get of a step, by count.
        """
        bits = (sequences - 1).bit_length()
        size = self._sizes.get(bits)
        if size is None:
            size = self._sizes[bits] = _Size(self.counts)
        arm = size.choose(steps, tokens)
        self._last = Tried(bits, arm, arm == self._last.arm)
        return self._last

    def learn(self, tried: Tried, seconds: float) -> None:
        """Takes note of what a step of nothing but decodes took, relative to what is predicted without guesses."""
        if tried.settled:
            self._sizes[tried.size].learn(tried.arm, seconds)

    @property
    def tries(self) -> bool:
        """Tells whether the last step was one of a stretch that goes on, so that it is to be asked for the next one."""
        return self._sizes[self._last.size].left > 0 if self._sizes else False

    def guess_seconds(self, tried: Tried) -> float:
        """Returns what a guess adds to a sequence's share of a step, relative to that; 0: that is not known yet.

        It is so much if all sequences have the count, and less if some are left out, which are the sooner back for it.
        """
        size = self._sizes[tried.size]
        none, some = size.arms[0], size.arms[tried.arm]
        if tried.arm in (0, size.tried) or not none.weight or not some.weight:
            return 0.0
        return max(0.0, some.mean - none.mean) / self.counts[tried.arm]


class _Arm:
    """Averages what steps of one count took, older ones with less weight."""

    __slots__ = ("due", "lost", "seconds", "weight")

    def __init__(self) -> None:
        self.weight = self.seconds = 0.0
        self.due = 0  # step of this size at which it is tried again
        self.lost = 0  # tries since it was the best

    @property
    def mean(self) -> float:
        """Returns what one of its steps takes."""
        return self.seconds / self.weight

    def fade(self, kept: float) -> None:
        """Forgets some of what is known."""
        self.weight *= kept
        self.seconds *= kept

    def learn(self, seconds: float) -> None:
        if self.weight > ENOUGH:
            seconds = min(seconds, SLOWEST * self.mean)
        self.fade(KEPT)
        self.weight += 1
        self.seconds += seconds


class _Size:
    """Tries counts with batches of about one size, without guesses at first."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.arms = [_Arm() for _ in counts]
        self._counts = counts
        self._tokens: Sequence[float] = ()
        self._usual = 0  # the arm that is best, as far as is known
        self._now = 0
        self.left = STRETCH  # steps of the stretch
        self._measured = 0  # of its steps
        self._steps = 0

    def choose(self, steps: int, tokens: Sequence[float]) -> int:
        """Returns the arm of a step, so many behind the last one; an arm is to give so many `tokens`."""
        self._steps += steps
        self._tokens = tokens
        if self.left > 0:
            self.left -= 1
            return self._now
        tried, self._usual = self._now, self._best()
        if tried != self._usual and self.arms[tried].weight:
            self._put_off(tried)
        self._now = self._usual
        if not self.arms[self._usual].weight:
            self.left, self._measured = STRETCH - 1, 0
            return self._now
        for arm in self._others():
            one = self.arms[arm]
            if not one.weight and not one.due:
                self._put_off(arm)
            elif one.due <= self._steps:
                one.fade(FADED)
                self._now, self.left, self._measured = arm, STRETCH - 1, 0
                self.arms[arm].due = self._steps + OFTEN
                break
        return self._now

    @property
    def tried(self) -> int:
        """Returns the arm that is tried; 0: the usual one goes on."""
        return self._now if self._now != self._usual else 0

    def learn(self, arm: int, seconds: float) -> None:
        """Takes note of a step, and ends a try that is as bad as can be."""
        self.arms[arm].learn(seconds)
        if arm == self._now != self._usual and self.arms[self._usual].weight:
            self._measured += 1
            if self._measured >= ENOUGH and HOPELESS * self._rate(arm) < self._rate(self._usual):
                self.left = 0

    def _seconds(self, arm: int) -> float:
        """Returns what a step of an arm takes; one that was never tried lies on the line through its neighbours.

        As long as nothing was tried beyond an arm, more guesses are taken to cost no more: else who would find out?
        """
        if self.arms[arm].weight:
            return self.arms[arm].mean
        known = [each for each, one in enumerate(self.arms) if one.weight]
        above = [each for each in known if each > arm][:1]
        below = [each for each in known if each < arm][-2 + len(above) :]
        near = below + above
        if len(near) < 2:
            return self.arms[near[0]].mean if near else 1.0
        (low, high), at = near, self._counts
        slope = (self.arms[high].mean - self.arms[low].mean) / (at[high] - at[low])
        return max(self.arms[low].mean + slope * (at[arm] - at[low]), self.arms[below[-1]].mean)

    def _rate(self, arm: int) -> float:
        return self._tokens[arm] / self._seconds(arm)

    def _best(self) -> int:
        best = self._usual
        known = max(arm for arm, one in enumerate(self.arms) if one.weight or arm == self._usual)
        for arm in range(min(len(self.arms), known + FARTHER + 1)):
            if self._rate(arm) > (MORE if arm > best else FEWER) * self._rate(best):
                best = arm
        if best != self._usual:
            self.arms[best].lost = 0
        return best

    def _others(self) -> list[int]:
        """Returns those that may be tried: none first; one count below the usual one and two above it."""
        near = [self._usual - 1, self._usual + 1, self._usual + 2]
        return [arm for arm in dict.fromkeys((0, *near)) if 0 <= arm < len(self.arms) and arm != self._usual]

    def _put_off(self, arm: int) -> None:
        """Settles when an arm that was tried is tried again, by what that costs."""
        usual, tried = self.arms[self._usual], self.arms[arm]
        lost = self._seconds(arm) - self._tokens[arm] / self._rate(self._usual)  # in one step of it
        steps = STRETCH * lost / self._seconds(self._usual) * len(self._others()) / BUDGET
        tried.due = self._steps + int(max(OFTEN, min(SELDOM, steps, OFTEN << min(2 * tried.lost, 8))))
        tried.lost += 1
        usual.lost = 0
