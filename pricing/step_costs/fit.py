"""Estimates step costs from measured steps: costs = level · shape.

The shape, how a step's seconds divide among the coefficients, is a least-squares fit of predicted / measured to 1, with
exponential forgetting (Plackett, 1950). Relative errors make steps of 2 ms and of 2 s count alike, and a step that
stalled for a second hardly count. Each kind of step (with prompts, decodes, draft tokens or not) forgets separately: a
thousand decodes do not erase what is known of prompts. A pull towards the seed decides where steps cannot tell
coefficients apart, such as batch and context that never change; it is strong if the start has measured them apart, and
weak if they were derived. It keeps the seed's ratios, not its seconds: the seed counts κ times, where κ is the
least-squares factor of the seed over the kinds of steps that a coefficient is part of. So a neighbour that doubles the
time of steps with short contexts doubles what is believed of long ones. Coefficients are at least 0: coordinate descent
on the normal equations, a few rounds for each second of steps.

The level is one factor for all coefficients, the running median of measured / predicted. It follows each step, within
some ten when neighbours take cores away, and removes the bias of least squares over relative errors.
"""

from collections import deque
from collections.abc import Sequence
from itertools import chain, compress
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
LEVEL_RATIO = 1.03  # largest change of the level by one step, up or down
MAX_LEVEL = 8.0  # bound of the level, and of its inverse; beyond it the shape has to follow
ERROR_WINDOW_STEPS = 101  # steps in the median error that is reported
MAX_SECONDS_BETWEEN_SOLUTIONS, MAX_STEPS_BETWEEN_SOLUTIONS = 1.0, 64
SOLVED_LEVEL_RATIO = 1.25
"""The shape has a solution when as many seconds or steps have come, or when the level has changed by this ratio: then
neighbours have come or gone, and the shape goes along. Until the level moves, each step has a solution."""
PROMPT_PART, CONTEXT_PART = 1, 4
MIN_PROMPT_SHARE = 0.01
"""Least cost of a prompt's token, as a share of the seed's: 0 would mean that costs are unknown, and no router could
predict anything until further prompts came to a worker that only decodes."""


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
        self._level = self._solved_level = 1.0  # the factor now, and at the last solution
        self._kinds: dict[tuple[bool, bool, bool], _Equations] = {}
        self._parts: list[int] = []  # of which steps so far consist, ascending
        self._errors: deque[float] = deque(maxlen=ERROR_WINDOW_STEPS)
        self._steps = 0
        self._unsolved_steps, self._unsolved_s = 0, 0.0  # since the last solution
        self._fastest = 0.0  # s per token of a sequence in the fastest decode step, had all draft tokens been accepted
        self._costs: StepCosts | None = seed  # None: not computed since the last step

    @property
    def costs(self) -> StepCosts:
        """The costs by all steps so far: the shape of the last solution, at the level of the last step."""
        if self._costs is None:
            self._costs = self._told()
        return self._costs

    def learn(self, work: StepWork, seconds: float) -> None:
        """Learns from a step that took `seconds`; ignores a step without work or duration (the clock was set)."""
        self.learn_in_a_row(work, (seconds,))

    def learn_in_a_row(self, work: StepWork, durations: Sequence[float]) -> None:
        """Learns from steps of these seconds, each with a token more of every sequence than the one before.

        `work` is the first step's. The result is the same as that of `learn` for each step, in less time.
        """
        if durations[0] < MIN_STEP_S or not (work.prompt_tokens or work.sequences):
            return
        if work.sequences:
            token = min(durations) * work.sequences / (work.sequences + work.rows)
            self._fastest = min(self._fastest or token, token)
        amounts = [
            1.0,
            float(work.prompt_tokens),
            work.pairs,
            float(work.sequences),
            float(work.context),
            float(work.rows),
            float(work.rows > 0),
        ]
        for part, amount in enumerate(amounts):
            if amount and not self._scale[part]:
                self._scale[part] = durations[0] / max(1.0, amount)  # unknown: as if it were all of the step
        kind, learned, self._costs = self._kind_of(work), 0, None
        while learned < len(durations):
            parts = list(map(mul, amounts, self._scale))
            taken = self._take(kind, parts, work.sequences * self._scale[CONTEXT_PART], durations[learned:])
            learned += taken
            amounts[CONTEXT_PART] += work.sequences * taken

    def settle(self) -> None:
        """Solves for all steps so far, since no further step may come soon."""
        if self._unsolved_steps:
            self._solve()
            self._costs = None

    def _take(self, kind: "_Equations", parts: list[float], growth: float, durations: Sequence[float]) -> int:
        """Takes steps of one shape until a solution is due, and returns how many it took.

        `parts`: of the first step, in seconds; `growth`: of the context's part, per step.
        """
        predicted, grown = sum(map(mul, parts, self._shape)), growth * self._shape[CONTEXT_PART]
        counted = self._follow(predicted, grown, kind.steps, durations)
        kind.add([parts[part] for part in kind.parts], growth, counted)
        level_ratio = self._level / self._solved_level
        if (
            self._steps <= MIN_LEVEL_STEPS
            or self._unsolved_steps >= MAX_STEPS_BETWEEN_SOLUTIONS
            or self._unsolved_s >= MAX_SECONDS_BETWEEN_SOLUTIONS
            or not 1 / SOLVED_LEVEL_RATIO < level_ratio < SOLVED_LEVEL_RATIO
        ):
            self._solve()
        return len(counted)

    def _follow(self, predicted: float, grown: float, known: int, durations: Sequence[float]) -> list[float]:
        """Follows steps with the level until a solution is due; returns the seconds for which they count.

        `predicted`: seconds of the first by the shape; `grown`: by which the next ones are longer; `known`: steps of
        their kind so far. This is a hot path: simulations learn from thousands of steps in a second.
        """
        moves = self._steps >= MIN_LEVEL_STEPS
        most = MAX_STEPS_BETWEEN_SOLUTIONS - self._unsolved_steps if moves else 1
        level, unsolved_s, errors, counted = self._level, self._unsolved_s, self._errors, list[float]()
        lowest, highest = self._solved_level / SOLVED_LEVEL_RATIO, self._solved_level * SOLVED_LEVEL_RATIO
        for seconds in durations[:most]:
            unsolved_s += seconds
            if predicted > 0:
                expected = level * predicted
                errors.append(abs(expected / seconds - 1))
                if moves:
                    wanted, low, high = seconds / predicted, level / LEVEL_RATIO, level * LEVEL_RATIO
                    level = wanted if low < wanted < high else high if wanted > level else low
                    if not 1 / MAX_LEVEL < level < MAX_LEVEL:
                        level = MAX_LEVEL if level > 1 else 1 / MAX_LEVEL
                if seconds * MAX_SPEEDUP < expected and known + len(counted) >= MIN_KIND_STEPS:
                    seconds = expected / MAX_SPEEDUP
            counted.append(seconds)
            predicted += grown
            if unsolved_s >= MAX_SECONDS_BETWEEN_SOLUTIONS or not lowest < level < highest:
                break
        self._level, self._unsolved_s = level, unsolved_s
        self._unsolved_steps += len(counted)
        self._steps += len(counted)
        return counted

    def _kind_of(self, work: StepWork) -> "_Equations":
        key = work.prompt_tokens > 0, work.sequences > 0, work.rows > 0
        if key not in self._kinds:
            pairs_of_parts = compress(((1, 2), (3, 4), (5, 6)), key)
            self._kinds[key] = _Equations((0, *chain.from_iterable(pairs_of_parts)), self._pull)
            self._parts = sorted({part for kind in self._kinds.values() for part in kind.parts})
            for kind in self._kinds.values():
                kind.places = [self._parts.index(part) for part in kind.parts]
        return self._kinds[key]

    def _solve(self) -> None:
        self._unsolved_steps, self._unsolved_s = 0, 0.0
        shape, seed = [self._shape[part] for part in self._parts], self._seed_steps
        equations = [
            (place, row, row[place], wanted + seed * pull, seed + row[place])
            for place, (row, wanted, pull) in enumerate(zip(*self._together(), strict=True))
        ]
        for place, row, own, wanted, weight in equations * SOLVER_ROUNDS:
            shape[place] = max(0.0, (wanted + own * shape[place] - sum(map(mul, row, shape))) / weight)
        for part, share in zip(self._parts, shape, strict=True):
            self._shape[part] = share
        if PROMPT_PART in self._parts:
            self._shape[PROMPT_PART] = max(MIN_PROMPT_SHARE, self._shape[PROMPT_PART])
        self._solved_level = self._level

    def _together(self) -> tuple[list[list[float]], list[float], list[float]]:
        """Returns rows and sums of the equations of all kinds, and the values to which the seed pulls their parts."""
        count = len(self._parts)
        rows, sums = [[0.0] * count for _ in range(count)], [0.0] * count
        seed_wanted, seed_weight = [0.0] * count, [0.0] * count
        for kind in self._kinds.values():
            of_seed = kind.of_seed()
            for place, products, wanted in zip(kind.places, kind.products, kind.sums, strict=True):
                row = rows[place]
                sums[place] += wanted
                seed_wanted[place] += of_seed.wanted
                seed_weight[place] += of_seed.weight
                for other, product in zip(kind.places, products, strict=True):
                    row[other] += product
        pulls = [
            self._pull[part] * (wanted / weight if weight else 1.0)
            for part, wanted, weight in zip(self._parts, seed_wanted, seed_weight, strict=True)
        ]
        return rows, sums, pulls

    def _told(self) -> StepCosts:
        parts = [self._level * q * s for q, s in zip(self._scale, self._shape, strict=True)]
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


class _Equations:
    """Normal equations of steps of one kind, older ones with less weight."""

    def __init__(self, parts: tuple[int, ...], seed: Sequence[float]) -> None:
        """`parts`: indices of their coefficients; `seed`: all coefficients by the seed, scaled."""
        self.parts = parts
        self.places: list[int] = []  # of these among the parts of all kinds
        self.products = [[0.0] * len(parts) for _ in parts]
        self.sums = [0.0] * len(parts)
        self.steps = 0
        self._context = parts.index(CONTEXT_PART) if CONTEXT_PART in parts else None
        self._seed = [seed[part] for part in parts]
        self._of_seed: _FactorFit | None = None  # None: not computed since the last step

    def of_seed(self) -> _FactorFit:
        """Returns the fit of the factor by which the seed counts, over these steps."""
        if self._of_seed is None:
            own = self._seed
            weight = sum([share * sum(map(mul, row, own)) for row, share in zip(self.products, own, strict=True)])
            self._of_seed = _FactorFit(sum(map(mul, own, self.sums)), weight)
        return self._of_seed

    def add(self, amounts: list[float], growth: float, durations: Sequence[float]) -> None:
        """Adds steps: the parts of each, divided by its seconds, should sum up to 1.

        `amounts`: parts of the first step, scaled; `growth`: by which the context's part grows from step to step. With
        w the weights, s the seconds, and x + i g a step's parts, the sum of w/s^2 (x + i g)(x + i g)^T is, for a, b, c
        = sums of w/s^2, w/s^2 i, w/s^2 i^2, that of one step with parts x + b/a g and weight a, plus (c - b^2/a) g g^T.
        """
        decay, context = STEP_DECAY ** len(durations), self._context
        a = b = c = alone = alone_at = at = 0.0
        weight = decay
        for seconds in durations:
            weight /= STEP_DECAY
            once = weight / seconds
            twice = once / seconds
            moment = at * twice
            alone += once
            alone_at += at * once
            a += twice
            b += moment
            c += at * moment
            at += 1.0  # a float, since mixed products take longer
        self.sums = [decay * old + alone * amount for old, amount in zip(self.sums, amounts, strict=True)]
        if context is not None:
            self.sums[context] += alone_at * growth
            amounts[context] += growth * b / a
        for place, amount in enumerate(amounts):
            row, scaled = zip(self.products[place], amounts, strict=True), a * amount
            self.products[place] = [decay * old + scaled * other for old, other in row]
        if context is not None:
            self.products[context][context] += (c - b * b / a) * growth * growth
        self.steps += len(durations)
        self._of_seed = None
