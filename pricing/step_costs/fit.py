"""Estimates step costs from measured steps: costs = level · shape.

The shape, how a step's seconds divide among the coefficients, is a least-squares fit of predicted / measured to 1, with
exponential forgetting (Plackett, 1950). Relative errors make steps of 2 ms and of 2 s count alike, and a step that
stalled for a second hardly count. Each kind of step (with prompts, decodes, draft tokens or not) forgets separately: a
thousand decodes do not erase what is known of prompts. A pull towards the seed decides where steps cannot tell
coefficients apart, such as batch and context that never change; it is strong if the start has measured them apart, and
weak if they were derived. It keeps the seed's ratios, not its seconds: the seed counts κ times, where κ is the
least-squares factor of the seed over the kinds of steps that a coefficient is part of. So a neighbour that doubles the
time of steps with short contexts doubles what is believed of long ones. Coefficients are at least 0: coordinate descent
on the normal equations, a few rounds every few steps.

The level is one factor for all coefficients, the running median of measured / predicted. It follows within some ten
steps when neighbours take cores away, and removes the bias of least squares over relative errors.
"""

from collections import deque
from collections.abc import Sequence
from itertools import chain, compress
from math import exp, log
from operator import mul
from statistics import median
from typing import NamedTuple

from msgspec import structs

from pricing.step_costs.steps import StepCosts, StepWork

STEP_DECAY = 0.99  # weight of a step relative to the next step of its kind: about a hundred steps count
DERIVED_SEED_STEPS, MEASURED_SEED_STEPS = 0.03, 1.0
"""Weight of the seed, in steps; an unknown coefficient is pulled to 0."""
SOLVER_ROUNDS = 4  # rounds of coordinate descent at a time; each continues from the last result
MIN_STEP_S = 1e-6  # least seconds of a step; a shorter measurement is an error of the clock
MAX_SPEEDUP = 4.0  # bound of predicted / measured of a step, once `MIN_KIND_STEPS` steps of its kind have come
MIN_KIND_STEPS = 8
MIN_LEVEL_STEPS = 16  # steps until the level moves: until then the shape converges faster alone
LEVEL_STEP = 0.03  # largest change of the level's logarithm by one step
LEVEL_BOUND = log(8.0)  # bound of the level's logarithm, up and down; beyond it the shape has to follow
ERROR_WINDOW_STEPS = 101  # steps in the median error that is reported
STEPS_BETWEEN_SOLUTIONS = 8
"""Steps between two solutions, once the level moves; a solution takes a tenth of a small step."""
STEPS_BETWEEN_REPORTS = 8  # steps between two updates of `costs`, after the first so many
COEFFICIENT_COUNT = 7


class StepFit:
    """Learns step costs from measured steps."""

    def __init__(self, seed: StepCosts | None = None) -> None:
        """`seed` may lack coefficients: these are 0 until steps show them."""
        seed = seed or StepCosts()
        self._seed = seed
        self._seed_steps = MEASURED_SEED_STEPS if seed.told_apart else DERIVED_SEED_STEPS
        self._scale = [seed.step, seed.prompt_token, seed.pair, seed.sequence, seed.context_token, seed.row, seed.rows]
        self._pull = [1.0 if scale else 0.0 for scale in self._scale]  # shares of the scale
        self._shape = list(self._pull)  # of each part, in its scale
        self._level = 0.0  # logarithm of the factor
        self._kinds: dict[tuple[bool, bool, bool], _Equations] = {}
        self._errors: deque[float] = deque(maxlen=ERROR_WINDOW_STEPS)
        self._steps = 0
        self._fastest = 0.0  # s for each token of a sequence, had all guesses come true, of any step with decodes
        self.costs = seed

    def learn(self, work: StepWork, seconds: float) -> None:
        """Learns from a step that took `seconds`; ignores a step without work or duration (the clock was set)."""
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
                self._scale[part] = seconds / max(1.0, amount)  # unknown: as if it were all of the step
        predicted = sum(a * q * s for a, q, s in zip(amounts, self._scale, self._shape, strict=True))
        factor = exp(self._level)
        kind = self._kind_of(work)
        if predicted > 0:
            self._errors.append(abs(factor * predicted - seconds) / seconds)
            if self._steps >= MIN_LEVEL_STEPS:
                behind = log(seconds / (factor * predicted))
                self._level += max(-LEVEL_STEP, min(LEVEL_STEP, behind))
                self._level = max(-LEVEL_BOUND, min(LEVEL_BOUND, self._level))
            if kind.steps >= MIN_KIND_STEPS:
                seconds = max(seconds, factor * predicted / MAX_SPEEDUP)
        kind.add([amounts[part] * self._scale[part] / seconds for part in kind.parts])
        self._steps += 1
        if self._steps <= MIN_LEVEL_STEPS or self._steps % STEPS_BETWEEN_SOLUTIONS == 0:
            self._solve()
        if self._steps <= STEPS_BETWEEN_REPORTS or self._steps % STEPS_BETWEEN_REPORTS == 0:
            self.costs = self._told()

    def _kind_of(self, work: StepWork) -> "_Equations":
        key = work.prompt_tokens > 0, work.sequences > 0, work.rows > 0
        if key not in self._kinds:
            pairs_of_parts = compress(((1, 2), (3, 4), (5, 6)), key)
            self._kinds[key] = _Equations((0, *chain.from_iterable(pairs_of_parts)))
        return self._kinds[key]

    def _solve(self) -> None:
        shape, kinds = self._shape, self._kinds.values()
        fits = [kind.factor_of(self._pull) for kind in kinds]
        pulls = [
            pull and pull * _factor([fit for kind, fit in zip(kinds, fits, strict=True) if part in kind.products])
            for part, pull in enumerate(self._pull)
        ]
        for part in (*range(COEFFICIENT_COUNT),) * SOLVER_ROUNDS:
            weight, wanted = self._seed_steps, self._seed_steps * pulls[part]
            for kind in kinds:
                if (row := kind.products.get(part)) is not None:
                    own = row[kind.parts.index(part)]
                    weight += own
                    wanted += kind.sums[part] + own * shape[part] - sum(map(mul, row, [shape[at] for at in kind.parts]))
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


class _FactorFit(NamedTuple):
    """Numerator and denominator of the least-squares factor by which a shape counts, over some steps."""

    wanted: float
    weight: float


def _factor(fits: Sequence[_FactorFit]) -> float:
    """Returns the factor over all these steps; 1 without any."""
    weight = sum([fit.weight for fit in fits])
    return sum([fit.wanted for fit in fits]) / weight if weight else 1.0


class _Equations:
    """Normal equations of the steps of one kind, older steps with less weight. `parts`: those that its steps have."""

    def __init__(self, parts: tuple[int, ...]) -> None:
        self.parts = parts
        self.products = {part: [0.0] * len(parts) for part in parts}
        self.sums = dict.fromkeys(parts, 0.0)
        self.steps = 0

    def factor_of(self, shape: list[float]) -> _FactorFit:
        own = [shape[part] for part in self.parts]
        weight = sum(
            [share * sum(map(mul, self.products[part], own)) for part, share in zip(self.parts, own, strict=True)]
        )
        return _FactorFit(sum([share * self.sums[part] for part, share in zip(self.parts, own, strict=True)]), weight)

    def add(self, amounts: list[float]) -> None:
        """Adds a step: its parts' amounts, scaled and divided by the step's seconds, should sum up to 1."""
        self.steps += 1
        for part, amount in zip(self.parts, amounts, strict=True):
            row = self.products[part]
            self.products[part] = [STEP_DECAY * old + amount * other for old, other in zip(row, amounts, strict=True)]
            self.sums[part] = STEP_DECAY * self.sums[part] + amount
