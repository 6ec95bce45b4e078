"""Measures at start the seconds of a decoding sequence, a token of its context, and a pair of a prompt's tokens.

Steps of requests tell these apart only where batches and contexts vary, which may take hours: one client at a time
would leave a worker believing that long contexts are free. A start therefore runs pairs of steps that differ in one
amount each, on the engine that will serve: with its recorded steps, its ranks, and a pool whose pages are in memory.

The two steps of a pair alternate for some rounds, and the median of the rounds' differences counts. Where the rounds
disagree, as they do while other workers of the host start on the same cores, the pair is left out: a wrong ratio of
costs is worse than a derived one.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import NamedTuple

from contracts.kv.spec import blocks_for
from engine.engine import Engine
from engine.executor import Executor
from engine.plan import StepPlan, Work
from engine.start.profiling import PLAIN_SAMPLING
from pricing.step_costs.seed import Coefficient, StepContrast, TimedStep
from pricing.step_costs.steps import StepWork, pairs_of

CONTRASTED_SEQUENCES = 8
"""Sequences of a batch that is compared with a lone sequence; fewer, if the pool does not hold their long contexts."""
LONG_CONTEXT_TOKENS = 1024
"""Context of each sequence; the pool and the model may allow less."""
CONTEXT_RATIO = 32
"""Long context over short context, at most."""
CHUNK_TOKENS = 64
MAX_CHUNK_S = 0.1
"""Seconds that a chunk should take at most: a slow device computes a shorter one."""
MAX_CONTRASTS_S = 3.0
"""Seconds after which no further pair of steps is begun."""
MIN_ROUNDS, MAX_ROUNDS = 2, 9
"""Rounds of a pair, behind one that warms both steps up."""
MAX_PAIR_S = 0.8
"""Seconds after which a pair has no further round, once it has had `MIN_ROUNDS`."""
SMALL_SHARE = 0.1
"""Share of a step's seconds that rounds may disagree about, where the difference is no larger."""


def step_contrasts(
    engine: Engine,
    max_sequences: int,
    max_tokens: int,
    tokens_per_second: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[StepContrast]:
    """Measures pairs of steps on an engine without requests, most useful pair first; none of a model without decodes.

    `max_sequences` and `max_tokens` bound a step. Blocks are written to, and count as free afterwards. Raises
    `DeviceError` if the device fails.
    """
    if engine.pooler is not None:
        return []
    steps, began = _Steps(engine, clock), clock()
    sequences = max(1, min(CONTRASTED_SEQUENCES, max_sequences, max_tokens, steps.room // LONG_CONTEXT_TOKENS))
    long = min(LONG_CONTEXT_TOKENS, engine.model_config.max_model_len, steps.room // sequences)
    if long < 2:
        return []
    short = max(1, long // CONTEXT_RATIO)
    tokens = max(1, min(CHUNK_TOKENS, max_tokens, long // 2, int(MAX_CHUNK_S * tokens_per_second)))
    found: list[StepContrast] = []

    def compare(coefficient: Coefficient, less: _Step, more: _Step) -> None:
        if clock() - began < MAX_CONTRASTS_S and (pair := steps.alternated(less, more)) is not None:
            found.append(StepContrast(coefficient, *pair))

    compare("context_token", steps.decodes(sequences, short), steps.decodes(sequences, long))
    if sequences > 1:
        compare("sequence", steps.decodes(1, sequences * short), steps.decodes(sequences, short))
    compare("pair", steps.chunk(0, tokens), steps.chunk(long - tokens, tokens))
    return found


def agreed(less: Sequence[float], more: Sequence[float]) -> float | None:
    """Returns by how many seconds the second step is longer than the first, given both steps' seconds of each round.

    None if the middle half of the rounds says anything between 0 and twice that, unless all of it is a small share of
    the first step: some amounts cost nothing.
    """
    differences = [longer - shorter for shorter, longer in zip(less, more, strict=True)]
    lower, middle, upper = quantiles(differences, n=4, method="inclusive")
    return middle if upper - lower <= max(middle, SMALL_SHARE * median(less)) else None


class _Step(NamedTuple):
    """Step to measure, and its work."""

    plan: StepPlan
    work: StepWork


class _Steps:
    """Times steps of an engine; each sequence has blocks of its own, since a cache would make shared ones too fast.

    Ids of sequences are negative, unlike requests': the engine keeps states by id.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._executor = Executor(engine)
        self._clock = clock
        self._counts = engine.pool.counts
        self._block_tokens = [group.block_tokens for group in engine.pool.spec.groups]

    @property
    def room(self) -> int:
        """Tokens of the largest group; a smaller one, of a window, reads only the newest blocks of a context."""
        return max((count - 1) * tokens for count, tokens in zip(self._counts, self._block_tokens, strict=True))

    def decodes(self, sequences: int, context: int) -> _Step:
        """Returns a step in which this many sequences decode behind `context` tokens each."""
        works = [
            Work(~number, context - 1, [0], self._tables(number, context), PLAIN_SAMPLING, output_index=1)
            for number in range(sequences)
        ]
        return _Step(StepPlan(0, works), StepWork(sequences=sequences, context=sequences * context))

    def chunk(self, start: int, tokens: int) -> _Step:
        """Returns a step with `tokens` tokens of a prompt behind `start` others."""
        work = Work(~0, start, [0] * tokens, self._tables(0, start + tokens), PLAIN_SAMPLING)
        return _Step(StepPlan(0, [work]), StepWork(tokens, pairs_of(start, tokens)))

    def alternated(self, less: _Step, more: _Step) -> tuple[TimedStep, TimedStep] | None:
        """Measures two steps in turn; None if the rounds disagree. The first counts with its fastest run."""
        began, shorter, longer = self._clock(), list[float](), list[float]()
        self._seconds(less), self._seconds(more)
        while len(longer) < MIN_ROUNDS or (len(longer) < MAX_ROUNDS and self._clock() - began < MAX_PAIR_S):
            shorter.append(self._seconds(less))
            longer.append(self._seconds(more))
        difference, fastest = agreed(shorter, longer), min(shorter)
        if difference is None or fastest <= 0:
            return None
        return TimedStep(less.work, fastest), TimedStep(more.work, fastest + difference)

    def _tables(self, number: int, tokens: int) -> tuple[list[int], ...]:
        """Returns block tables of the sequence with this number; blocks repeat where a group has too few."""
        tables = []
        for count, block_tokens in zip(self._counts, self._block_tokens, strict=True):
            blocks = blocks_for(tokens, block_tokens)
            tables.append([1 + (number * blocks + at) % (count - 1) for at in range(blocks)])
        return tuple(tables)

    def _seconds(self, step: _Step) -> float:
        before = self._clock()
        self._executor.launch(step.plan)
        self._executor.collect()
        return self._clock() - before
