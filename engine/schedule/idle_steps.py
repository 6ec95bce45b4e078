"""Plans measuring steps for an idle worker, so that the known costs of steps stay up to date.

Costs measured while the host was busy are too high once that load has gone. A gateway with too high costs refuses all
requests with an objective; then no step runs that could correct them. An idle worker therefore measures by itself, when
it starts and some time after its last step, for a small share of its time. A session computes short texts that are not
cached: a few prompts and, on a decode worker, tokens after the first prompt. This module is pure: the engine's loop
runs the plans, and ends the session as soon as an event arrives.
"""

from contracts.messages.sampling import Sampling
from engine.blocks.manager import BlockManager, Tables
from engine.plan import StepPlan, Work
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepWork, pairs_of

MEASURE_AFTER_S = 2.0
"""Seconds without a step after which an idle worker measures again."""
MAX_SHARE = 0.01
"""Maximum share of an idle worker's time for measurements."""
MAX_SESSION_S = 0.25
"""Seconds after which a session launches no further step, since a step of a large model on a slow device is long."""
PROMPT_TOKENS = (16, 64, 16, 64)
"""Tokens of a session's prompts; two lengths separate the cost of a step from the cost of a token."""
DECODE_STEPS = 8
"""Decode steps of a session, after a prompt of the first length; a prefill worker runs none."""
PLAIN_SAMPLING = Sampling(seed=0)


class IdleSteps:
    """Decides when an idle worker measures, plans the steps, and learns from them. `now`: s of any one clock."""

    def __init__(self, blocks: BlockManager, fit: StepFit, most_tokens: int, *, decodes: bool) -> None:
        """Teaches `fit`. `most_tokens`: maximum of a step and of a text. `decodes`: this is a decode worker."""
        self._blocks = blocks
        self._fit = fit
        self._most_tokens = most_tokens
        self._decodes = decodes
        self._sessions = 0
        self._begun = self._due = 0.0
        self._tables: Tables | None = None

    def seconds_left(self, now: float) -> float:
        """Returns the seconds until the next session, if no step runs before."""
        return max(0.0, self._due - now)

    def stepped(self, now: float) -> None:
        self._due = max(self._due, now + MEASURE_AFTER_S)

    def begin(self, now: float) -> list[StepPlan]:
        """Begins a session. Returns its steps, in order; empty if blocks are short."""
        self._begun, self._due = now, now + MEASURE_AFTER_S
        lengths = [min(length, self._most_tokens) for length in PROMPT_TOKENS]
        if self._decodes:
            lengths = [length for length in lengths if length == lengths[0]]
        behind = DECODE_STEPS if self._decodes else 0
        self._tables = self._blocks.allocate(min(max(lengths) + behind, self._most_tokens))
        if self._tables is None:
            return []
        self._sessions += 1
        room = min(self._most_tokens, self._blocks.capacity(self._tables))  # a window may start with fewer
        works = [self._work(0, min(length, room)) for length in lengths]
        first = min(lengths[0], room)
        works += [self._work(first + at, 1, at + 1) for at in range(min(behind, room - first))]
        return [StepPlan(-number, [work]) for number, work in enumerate(works, 1)]

    def took(self, plan: StepPlan, seconds: float) -> None:
        """Learns the seconds of a step of the session."""
        (work,) = plan.works
        if work.output_index:
            self._fit.learn(StepWork(sequences=1, context=work.start + 1), seconds)
        else:
            tokens = len(work.token_ids)
            self._fit.learn(StepWork(prompt_tokens=tokens, pairs=pairs_of(0, tokens)), seconds)

    def is_over(self, now: float) -> bool:
        return now - self._begun > MAX_SESSION_S

    def end(self, now: float) -> None:
        """Ends a session: its costs count from now on, and its blocks, none of which is cached, are free."""
        self._fit.settle()
        if self._tables is not None:
            self._blocks.free(self._tables)
            self._tables = None
        self._due = now + max(MEASURE_AFTER_S, (now - self._begun) / MAX_SHARE)

    def _work(self, start: int, tokens: int, output_index: int = 0) -> Work:
        assert self._tables is not None
        sequence = -self._sessions  # negative, unlike requests' ids: devices keep states by id
        return Work(sequence, start, [0] * tokens, self._tables, PLAIN_SAMPLING, output_index=output_index)
