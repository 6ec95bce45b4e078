"""Measures step times under several limits on draft tokens, and finds the limit with the most tokens per second.

This is a bandit whose arms are the limits, with separate statistics for each batch size (powers of 2). Most steps use
the best limit; now and then a stretch of steps uses another limit. Only seconds are measured here, because a short
stretch measures them to a few percent; the caller gives the expected tokens, which need more steps. Seconds are
relative to the prediction for the step without draft tokens, so that a change of context or batch size is not mistaken
for an effect of draft tokens. The cost of an untried limit is interpolated between its neighbours. The cost of trials
is bounded: a limit that is half as fast is tried so seldom that all trials together take at most `TRIAL_BUDGET` of the
time, and a limit that is nearly as fast is tried more often (idea of Agrawal and Goyal, 2012: no trials of arms that
are clearly worse).
"""

from collections.abc import Sequence
from typing import NamedTuple

STRETCH_STEPS = 12
"""Steps of a trial. The first is not measured: it still verifies draft tokens of the previous limit."""
TRIAL_BUDGET = 0.01
"""Maximum share of time for trials, in the long run."""
MAX_PAUSE_STEPS, MIN_PAUSE_STEPS = 1 << 14, 128
"""Maximum and minimum steps between two trials of a limit; each failed trial multiplies the pause by 4."""
FASTER_WITH_MORE, FASTER_WITH_FEWER = 1.03, 1.01
"""Speed-up required to change to a higher limit, and to a lower limit."""
HOPELESS_RATIO, HOPELESS_AFTER_STEPS = 1.5, 4
"""A trial ends early if tokens take this many times longer than usual, after this many steps."""
MAX_LIMITS_AHEAD = 3
"""Number of limits by which the usual limit may exceed the tried limits."""
STEP_DECAY = 0.98
"""Decay of a step's weight for each later step under its limit: an average over about 50."""
RETRY_DECAY = 0.5
"""Weight of all earlier steps under a limit when it is tried again."""
MAX_SLOWDOWN = 2.0
"""Maximum ratio at which a step counts relative to other steps under its limit: a slower step was probably
suspended."""


class TriedLimit(NamedTuple):
    """The limit of one step."""

    size: int  # of the batch: bit length of the number of sequences, less 1
    arm: int  # index of the limit
    settled: bool  # the step before had the same limit


class LimitTrials:
    """Chooses the maximum draft tokens of a sequence for each step. Reads no clock."""

    def __init__(self, limits: Sequence[int]) -> None:
        assert limits[0] == 0, "steps without draft tokens are what the others are compared with"
        self.limits = tuple(limits)
        self._sizes: dict[int, _BatchSize] = {}
        self._last = TriedLimit(0, 0, False)

    def begin(self, sequences: int, tokens: Sequence[float], steps: int = 1) -> TriedLimit:
        """Chooses for a step in which `sequences` decode, `steps` steps after the last choice.

        `tokens`: by limit, the expected tokens of a sequence's step.
        """
        bits = (sequences - 1).bit_length()
        size = self._sizes.get(bits)
        if size is None:
            size = self._sizes[bits] = _BatchSize(self.limits)
        arm = size.choose(steps, tokens)
        self._last = TriedLimit(bits, arm, arm == self._last.arm)
        return self._last

    def learn(self, tried: TriedLimit, seconds: float) -> None:
        """Records the relative seconds of a step of decodes only."""
        if tried.settled:
            self._sizes[tried.size].learn(tried.arm, seconds)

    @property
    def tries(self) -> bool:
        """Whether a stretch goes on, so that `begin` must be called for the next step too."""
        return self._sizes[self._last.size].left > 0 if self._sizes else False

    def draft_seconds(self, tried: TriedLimit) -> float:
        """Returns the cost of a draft token, relative to its sequence's share of a step; 0: unknown.

        It is measured with all sequences at the limit. If some are left out the cost is lower, and they return the
        sooner.
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
        self.due = 0  # step of this batch size at which the limit is tried again
        self.lost = 0  # trials since it was the best

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
    """Tries limits with batches of similar size, starting without draft tokens."""

    def __init__(self, limits: tuple[int, ...]) -> None:
        self.arms = [_Arm() for _ in limits]
        self._limits = limits
        self._tokens: Sequence[float] = ()
        self._usual = 0  # best known arm
        self._now = 0
        self.left = STRETCH_STEPS  # remaining steps of the stretch
        self._measured = 0  # measured steps of the stretch
        self._steps = 0

    def choose(self, steps: int, tokens: Sequence[float]) -> int:
        """Returns the arm of a step, `steps` steps after the last one. `tokens`: expected tokens by arm."""
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
        """The arm on trial; 0: no trial."""
        return self._now if self._now != self._usual else 0

    def learn(self, arm: int, seconds: float) -> None:
        """Records a step, and ends a trial that is far too slow."""
        self.arms[arm].learn(seconds)
        if arm == self._now != self._usual and self.arms[self._usual].weight:
            self._measured += 1
            if self._measured >= HOPELESS_AFTER_STEPS and HOPELESS_RATIO * self._rate(arm) < self._rate(self._usual):
                self.left = 0

    def _seconds(self, arm: int) -> float:
        """Returns the relative seconds of a step; for an untried arm, interpolated between its neighbours.

        Beyond the tried arms a higher limit is assumed to cost no more; otherwise it would never be tried.
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
        """Returns the arms that may be tried: no draft tokens, then one below the usual arm and two above it."""
        near = [self._usual - 1, self._usual + 1, self._usual + 2]
        return [arm for arm in dict.fromkeys((0, *near)) if 0 <= arm < len(self.arms) and arm != self._usual]

    def _put_off(self, arm: int) -> None:
        usual, tried = self.arms[self._usual], self.arms[arm]
        lost = self._seconds(arm) - self._tokens[arm] / self._rate(self._usual)  # per step
        steps = STRETCH_STEPS * lost / self._seconds(self._usual) * len(self._others()) / TRIAL_BUDGET
        doubled = MIN_PAUSE_STEPS << min(2 * tried.lost, 8)
        tried.due = self._steps + int(max(MIN_PAUSE_STEPS, min(MAX_PAUSE_STEPS, steps, doubled)))
        tried.lost += 1
        usual.lost = 0
