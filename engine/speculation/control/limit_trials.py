"""Measures what steps take under limits on a sequence's draft tokens, and finds the limit whose tokens come fastest.

This is a bandit whose arms are the limits, apart for each size of batch (powers of 2). Most steps have the best limit;
now and then a stretch of steps has another one. Only seconds are measured here, which a stretch of a few steps tells to
some percent; the caller gives the tokens to expect, which so few steps would not tell. Seconds are relative to those
predicted for the step without draft tokens, so that a longer context or another batch of that size does not pass for
draft tokens. A limit that was never tried lies on the line between its neighbours, so few are tried. Tries are bounded
by their cost: a limit that is half as fast is tried so seldom that all tries together cost no more than `TRIAL_BUDGET`
of the time, one that is nearly as fast more often (after the idea of Agrawal and Goyal, 2012, that what is clear need
not be tried).
"""

from collections.abc import Sequence
from typing import NamedTuple

STRETCH_STEPS = 12
"""Steps of a try, the first of which is not measured: it still verifies what the limit before it had drafted."""
TRIAL_BUDGET = 0.01
"""Share of the time that tries may cost in the long run."""
MAX_PAUSE_STEPS, MIN_PAUSE_STEPS = 1 << 14, 128
"""Steps between two tries of a limit, at most and at least; a limit that is tried in vain waits 4 times longer."""
FASTER_WITH_MORE, FASTER_WITH_FEWER = 1.03, 1.01
"""How much faster tokens have to come under a higher limit, or a lower one, for it to become the usual one."""
HOPELESS_RATIO, HOPELESS_AFTER_STEPS = 1.5, 4
"""A try ends early where tokens take this many times longer than usual, after so many steps."""
MAX_LIMITS_AHEAD = 3
"""Places by which the usual limit may go beyond those that were tried."""
STEP_DECAY = 0.98
"""Weight of a step when the next one under its limit has come: some fifty count."""
RETRY_DECAY = 0.5
"""Weight of all earlier steps under a limit when it is tried again."""
MAX_SLOWDOWN = 2.0
"""A step counts as at most this many times slower than others under its limit: it may have stood still."""


class TriedLimit(NamedTuple):
    """The limit of one step."""

    size: int  # of the batch: the number of bits of its sequences less 1
    arm: int  # place of the limit
    settled: bool  # the step before had this limit as well


class LimitTrials:
    """Chooses for each step how many draft tokens a sequence may have at most. It knows no clock."""

    def __init__(self, limits: Sequence[int]) -> None:
        assert limits[0] == 0, "steps without draft tokens are what the others are compared with"
        self.limits = tuple(limits)
        self._sizes: dict[int, _BatchSize] = {}
        self._last = TriedLimit(0, 0, False)

    def begin(self, sequences: int, tokens: Sequence[float], steps: int = 1) -> TriedLimit:
        """Chooses for a step in which `sequences` decode, `steps` behind the last one that was chosen for.

        `tokens`: by limit, the tokens that a sequence is expected to get from a step.
        """
        bits = (sequences - 1).bit_length()
        size = self._sizes.get(bits)
        if size is None:
            size = self._sizes[bits] = _BatchSize(self.limits)
        arm = size.choose(steps, tokens)
        self._last = TriedLimit(bits, arm, arm == self._last.arm)
        return self._last

    def learn(self, tried: TriedLimit, seconds: float) -> None:
        """Records the relative seconds of a step of nothing but decodes."""
        if tried.settled:
            self._sizes[tried.size].learn(tried.arm, seconds)

    @property
    def tries(self) -> bool:
        """Whether a stretch goes on, so that `begin` is to be called for the next step too."""
        return self._sizes[self._last.size].left > 0 if self._sizes else False

    def draft_seconds(self, tried: TriedLimit) -> float:
        """Returns what one draft token adds to its sequence's share of a step, relative to it; 0: not known yet.

        That is where all sequences have the limit. If some are left out it is less, and they are the sooner back.
        """
        size = self._sizes[tried.size]
        none, some = size.arms[0], size.arms[tried.arm]
        if tried.arm in (0, size.tried) or not none.weight or not some.weight:
            return 0.0
        return max(0.0, some.mean - none.mean) / self.limits[tried.arm]


class _Arm:
    """Averages of steps under one limit, older steps with less weight."""

    __slots__ = ("due", "lost", "seconds", "weight")

    def __init__(self) -> None:
        self.weight = self.seconds = 0.0
        self.due = 0  # step of this size at which it is tried again
        self.lost = 0  # tries since it was the best

    @property
    def mean(self) -> float:
        """Relative seconds of a step."""
        return self.seconds / self.weight

    def fade(self, decay: float) -> None:
        self.weight *= decay
        self.seconds *= decay

    def learn(self, seconds: float) -> None:
        if self.weight > HOPELESS_AFTER_STEPS:
            seconds = min(seconds, MAX_SLOWDOWN * self.mean)
        self.fade(STEP_DECAY)
        self.weight += 1
        self.seconds += seconds


class _BatchSize:
    """Tries limits with batches of about one size, beginning without draft tokens."""

    def __init__(self, limits: tuple[int, ...]) -> None:
        self.arms = [_Arm() for _ in limits]
        self._limits = limits
        self._tokens: Sequence[float] = ()
        self._usual = 0  # the arm that is best, as far as is known
        self._now = 0
        self.left = STRETCH_STEPS  # steps of the stretch
        self._measured = 0  # steps of the stretch that were measured
        self._steps = 0

    def choose(self, steps: int, tokens: Sequence[float]) -> int:
        """Returns the arm of a step, `steps` behind the last one; `tokens` are those expected by arm."""
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
            self.left, self._measured = STRETCH_STEPS - 1, 0
            return self._now
        for arm in self._others():
            one = self.arms[arm]
            if not one.weight and not one.due:
                self._put_off(arm)
            elif one.due <= self._steps:
                one.fade(RETRY_DECAY)
                self._now, self.left, self._measured = arm, STRETCH_STEPS - 1, 0
                one.due = self._steps + MIN_PAUSE_STEPS
                break
        return self._now

    @property
    def tried(self) -> int:
        """The arm of a try; 0: there is none, the usual arm goes on."""
        return self._now if self._now != self._usual else 0

    def learn(self, arm: int, seconds: float) -> None:
        """Records a step, and ends a hopeless try."""
        self.arms[arm].learn(seconds)
        if arm == self._now != self._usual and self.arms[self._usual].weight:
            self._measured += 1
            if self._measured >= HOPELESS_AFTER_STEPS and HOPELESS_RATIO * self._rate(arm) < self._rate(self._usual):
                self.left = 0

    def _seconds(self, arm: int) -> float:
        """Returns the relative seconds of a step; an arm that was never tried lies on the line through its neighbours.

        Where nothing was tried beyond an arm, a higher limit is taken to cost no more: else nobody would find out.
        """
        if self.arms[arm].weight:
            return self.arms[arm].mean
        known = [each for each, one in enumerate(self.arms) if one.weight]
        above = [each for each in known if each > arm][:1]
        below = [each for each in known if each < arm][-2 + len(above) :]
        near = below + above
        if len(near) < 2:
            return self.arms[near[0]].mean if near else 1.0
        (low, high), at = near, self._limits
        slope = (self.arms[high].mean - self.arms[low].mean) / (at[high] - at[low])
        return max(self.arms[low].mean + slope * (at[arm] - at[low]), self.arms[below[-1]].mean)

    def _rate(self, arm: int) -> float:
        return self._tokens[arm] / self._seconds(arm)

    def _best(self) -> int:
        best = self._usual
        known = max(arm for arm, one in enumerate(self.arms) if one.weight or arm == self._usual)
        for arm in range(min(len(self.arms), known + MAX_LIMITS_AHEAD + 1)):
            if self._rate(arm) > (FASTER_WITH_MORE if arm > best else FASTER_WITH_FEWER) * self._rate(best):
                best = arm
        if best != self._usual:
            self.arms[best].lost = 0
        return best

    def _others(self) -> list[int]:
        """Returns the arms that may be tried: no draft tokens, then one place below the usual arm and two above it."""
        near = [self._usual - 1, self._usual + 1, self._usual + 2]
        return [arm for arm in dict.fromkeys((0, *near)) if 0 <= arm < len(self.arms) and arm != self._usual]

    def _put_off(self, arm: int) -> None:
        usual, tried = self.arms[self._usual], self.arms[arm]
        lost = self._seconds(arm) - self._tokens[arm] / self._rate(self._usual)  # in one step
        steps = STRETCH_STEPS * lost / self._seconds(self._usual) * len(self._others()) / TRIAL_BUDGET
        doubled = MIN_PAUSE_STEPS << min(2 * tried.lost, 8)
        tried.due = self._steps + int(max(MIN_PAUSE_STEPS, min(MAX_PAUSE_STEPS, steps, doubled)))
        tried.lost += 1
        usual.lost = 0
