"""Fits what a worker's steps cost to the steps that it has run: weighted least squares with forgetting, two levels.

The shape, how a step's seconds divide among its parts, is a recursive least squares over *relative* errors (Plackett,
1950, with exponential forgetting): each step asks that predicted / measured be 1, so that steps of 2 ms and of 2 s
count alike, and one that stood still for a second hardly counts. Steps of prompts, of decodes, of both, and those that
verify guesses, are forgotten by newer ones of their own kind only: a thousand decodes do not wear out what is known of
prompts, and a thousand steps with guesses not what one without takes. A weak
pull towards the seed decides between what the steps cannot tell apart, such as batch and context of one that never
changes. Coefficients are never negative: they are found one by one, each the best at or above 0 beside the others
(coordinate descent on the normal equations, which converges for these), a few rounds every few steps.

The level is one factor for all: the running median of measured / predicted. It follows within some ten steps when
neighbours take cores away, and takes out what least squares over relative errors lean to.
"""

from collections import deque
from math import exp, log
from operator import mul
from statistics import median

from msgspec import structs

from pricing.steps import StepCosts, StepWork

STEP_DECAY = 0.98
"""What a step still weighs when the next of its kind has come: about fifty count."""
SEED_WEIGHT_STEPS = 0.03
"""The weight of the seed, in steps; where no seed is known, of 0."""
SOLVER_ROUNDS = 4
"""Rounds of coordinate descent at a time; they begin where those of the step before have ended."""
MIN_STEP_S = 1e-6
"""Seconds that any step takes."""
MAX_SPEEDUP = 4.0
"""A step counts as at most so many times faster than what is known, once `MIN_KIND_STEPS` steps of its kind have come."""
MIN_KIND_STEPS = 8
MIN_LEVEL_STEPS = 16
"""Steps until the level moves: before that the shape is far from what it will be, and finds it faster alone."""
LEVEL_STEP = 0.03
"""How much the level follows a step that was slower, or faster, than predicted."""
LEVEL_BOUND = log(8.0)
"""The logarithm of the level lies between this and its negative: beyond that the shape has to follow."""
ERROR_WINDOW_STEPS = 101
"""Steps whose error is told."""
STEPS_BETWEEN_SOLUTIONS = 8
"""Steps between two improvements of the shape, once the level moves: one takes as long as a tenth of a small step."""
STEPS_BETWEEN_REPORTS = 8
"""Steps between two looks at their median, once there were as many."""
COEFFICIENT_COUNT = 7


class StepFit:
    """Learns from steps, and gives their costs. It knows no clock: the caller says what a step took."""

    def __init__(self, seed: StepCosts | None = None) -> None:
        """Begins with `seed`, which may lack some parts, or be nothing at all: these are 0 until steps tell them."""
        seed = seed or StepCosts()
        self._seed = seed
        self._scale = [seed.step, seed.prompt_token, seed.pair, seed.sequence, seed.context_token, seed.row, seed.rows]
        self._pull = [1.0 if scale else 0.0 for scale in self._scale]  # shares of the scale
        self._shape = list(self._pull)  # of each part, in its scale
        self._level = 0.0  # logarithm of the factor
        self._kinds: dict[tuple[bool, bool, bool], _Equations] = {}
        self._errors: deque[float] = deque(maxlen=ERROR_WINDOW_STEPS)
        self._steps = 0
        self._fastest = 0.0  # s for each token of a sequence, had all guesses come true, of any step with decodes
        self.costs = seed  # as they are known now

    def learn(self, work: StepWork, seconds: float) -> None:
        """Takes note that a step took `seconds`; one that took none, since the clock was set, tells nothing."""
        if seconds < MIN_STEP_S or not (work.prompt_tokens or work.sequences):
            return
        if work.sequences:
            token = seconds * work.sequences / (work.sequences + work.rows)
            self._fastest = min(self._fastest or token, token)
        amounts = (
            1.0,
            float(work.prompt_tokens),
            work.pairs,
            float(work.sequences),
            float(work.context),
            float(work.rows),
            float(work.rows > 0),
        )
        for part, amount in enumerate(amounts):
            if amount and not self._scale[part]:
                self._scale[part] = seconds / max(1.0, amount)  # nothing is known: as if it were all of the step
        predicted = sum(a * q * s for a, q, s in zip(amounts, self._scale, self._shape, strict=True))
        factor = exp(self._level)
        kind = self._kinds.setdefault((work.prompt_tokens > 0, work.sequences > 0, work.rows > 0), _Equations())
        if predicted > 0:
            self._errors.append(abs(factor * predicted - seconds) / seconds)
            if self._steps >= MIN_LEVEL_STEPS:
                behind = log(seconds / (factor * predicted))
                self._level += max(-LEVEL_STEP, min(LEVEL_STEP, behind))
                self._level = max(-LEVEL_BOUND, min(LEVEL_BOUND, self._level))
            if kind.steps >= MIN_KIND_STEPS:
                seconds = max(seconds, factor * predicted / MAX_SPEEDUP)
        kind.add([a * q / seconds for a, q in zip(amounts, self._scale, strict=True)])
        self._steps += 1
        if self._steps <= MIN_LEVEL_STEPS or self._steps % STEPS_BETWEEN_SOLUTIONS == 0:
            self._solve()
        if self._steps <= STEPS_BETWEEN_REPORTS or self._steps % STEPS_BETWEEN_REPORTS == 0:
            self.costs = self._told()

    def _solve(self) -> None:
        """Improves the shape: each part in turn becomes the best that it can be, beside the others, at or above 0."""
        shape, kinds = self._shape, self._kinds.values()
        for part in (*range(COEFFICIENT_COUNT),) * SOLVER_ROUNDS:
            weight, wanted = SEED_WEIGHT_STEPS, SEED_WEIGHT_STEPS * self._pull[part]
            for kind in kinds:
                row = kind.products[part]
                weight += row[part]
                wanted += kind.sums[part] + row[part] * shape[part] - sum(map(mul, row, shape))
            shape[part] = max(0.0, wanted / weight)

    def _told(self) -> StepCosts:
        factor = exp(self._level)
        parts = [factor * q * s for q, s in zip(self._scale, self._shape, strict=True)]
        step, token, pair, sequence, context, row, rows = parts
        return structs.replace(
            self._seed,
            step=step,
            prompt_token=token,
            pair=pair,
            sequence=sequence,
            context_token=context,
            row=row,
            rows=rows,
            error=median(self._errors) if self._errors else 0.0,
            steps=self._steps,
            fastest=self._fastest,
        )


class _Equations:
    """Holds the normal equations of the steps of one kind, older ones with less weight."""

    def __init__(self) -> None:
        self.products = [[0.0] * COEFFICIENT_COUNT for _ in range(COEFFICIENT_COUNT)]
        self.sums = [0.0] * COEFFICIENT_COUNT
        self.steps = 0

    def add(self, parts: list[float]) -> None:
        """Adds a step's parts, each in its scale and as a share of the step's seconds: they should sum up to 1."""
        self.steps += 1
        for part, amount in enumerate(parts):
            row = self.products[part]
            self.products[part] = [STEP_DECAY * known + amount * other for known, other in zip(row, parts, strict=True)]
            self.sums[part] = STEP_DECAY * self.sums[part] + amount
