"""Plans steps of no request for an idle worker, so that the costs of steps stay known.

Costs that a start has measured beside other work, or that steps beside busy neighbours have taught, are too high when
that load has gone. A gateway that believes them refuses all requests with an objective; then no step runs, and nothing
would ever correct them. So an idle worker measures by itself: at once when it begins, and again when its last step was
some time ago, for a small share of its time. A session computes a short text that goes into no cache: a few prompts,
and on a decode worker tokens behind one of them. Pure: the engine's loop runs the plans, and ends the session as soon
as an event comes.
"""

from contracts.messages.sampling import Sampling
from engine.blocks.manager import BlockManager, Tables
from engine.plan import StepPlan, Work
from pricing.fit import StepFit
from pricing.steps import StepWork, pairs_of

MEASURE_AFTER_S = 2.0
"""Seconds without a step after which an idle worker measures again."""
MAX_SHARE = 0.01
"""The share of its time that an idle worker measures for, at most."""
MAX_SESSION_S = 0.25
"""Seconds after which a session launches no further step: a large model on a slow device takes long for each."""
PROMPT_TOKENS = (16, 64, 16, 64)
"""Tokens of a session's prompts: two lengths tell the cost of a step from the cost of a token."""
DECODE_STEPS = 8
"""Decode steps of a session, behind a prompt of the first length; a prefill worker runs none."""
PLAIN_SAMPLING = Sampling(seed=0)


class IdleSteps:
    """Says when an idle worker measures, plans the steps, and learns from them. `now` is in s of any one clock."""

    def __init__(self, blocks: BlockManager, fit: StepFit, most_tokens: int, *, decodes: bool) -> None:
        """Teaches `fit`. `most_tokens`: of a step, and of a text. `decodes`: this is a decode worker."""
        self._blocks = blocks
        self._fit = fit
        self._most_tokens = most_tokens
        self._decodes = decodes
        self._sessions = 0
        self._begun = self._due = 0.0
        self._tables: Tables | None = None

    def seconds_left(self, now: float) -> float:
        """Returns the seconds until it is time to measure, if nothing comes before."""
        return max(0.0, self._due - now)

    def stepped(self, now: float) -> None:
        self._due = max(self._due, now + MEASURE_AFTER_S)

    def begin(self, now: float) -> list[StepPlan]:
        """Begins a session. Returns its steps, in order: none where the blocks have no room for it."""
        self._begun, self._due = now, now + MEASURE_AFTER_S
        lengths = [min(length, self._most_tokens) for length in PROMPT_TOKENS]
        if self._decodes:
            lengths = [length for length in lengths if length == lengths[0]]
        behind = DECODE_STEPS if self._decodes else 0
        self._tables = self._blocks.allocate(min(max(lengths) + behind, self._most_tokens))
        if self._tables is None:
            return []
        self._sessions += 1
        room = min(self._most_tokens, self._blocks.capacity(self._tables))  # a window may begin with less
        works = [self._work(0, min(length, room)) for length in lengths]
        first = min(lengths[0], room)
        works += [self._work(first + at, 1, at + 1) for at in range(min(behind, room - first))]
        return [StepPlan(-number, [work]) for number, work in enumerate(works, 1)]

    def took(self, plan: StepPlan, seconds: float) -> None:
        """Learns what a step of the session took."""
        (work,) = plan.works
        if work.output_index:
            self._fit.learn(StepWork(sequences=1, context=work.start + 1), seconds)
        else:
            tokens = len(work.token_ids)
            self._fit.learn(StepWork(prompt_tokens=tokens, pairs=pairs_of(0, tokens)), seconds)

    def is_over(self, now: float) -> bool:
        return now - self._begun > MAX_SESSION_S

    def end(self, now: float) -> None:
        """Ends a session: gives the blocks back, none of whose texts the cache knows."""
        if self._tables is not None:
            self._blocks.free(self._tables)
            self._tables = None
        self._due = now + max(MEASURE_AFTER_S, (now - self._begun) / MAX_SHARE)

    def _work(self, start: int, tokens: int, output_index: int = 0) -> Work:
        assert self._tables is not None
        sequence = -self._sessions  # no request's: a device keeps some states by sequence, from step to step
        return Work(sequence, start, [0] * tokens, self._tables, PLAIN_SAMPLING, output_index=output_index)
