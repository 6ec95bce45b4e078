"""Runs a few steps for nobody while there is nothing to compute, so that what steps cost stays known.

What a start has measured beside other work, or busy neighbours have taught, is too high when they have gone. A gateway
that believes it refuses all requests with an objective; then no step runs, and nothing would ever correct it. So an
idle worker measures by itself: at once when it begins, and again when its last step was some time ago, a share of its
time at most. A session computes a short text that goes into no cache: parts of a prompt, and on a worker that decodes
tokens behind it. Pure: the engine's loop runs the plans, and ends the session as soon as there is something to do.
"""

from core.costs.fit import StepFit
from core.costs.steps import StepWork, pairs_of
from core.messages.sampling import Sampling
from engine.blocks.manager import BlockManager, Tables
from engine.plan import Plan, Work

EVERY_S = 2.0
"""Seconds without a step after which an idle worker measures again."""
SHARE = 0.01
"""The share of its time that an idle worker measures for, at most."""
SESSION_S = 0.25
"""Seconds after which a session ends, when the steps under way are done: a large model on a slow device takes long."""
PROMPTS = (16, 64, 16, 64)
"""Tokens of a session's prompts: of two lengths, which tell what a step takes from what a token takes."""
DECODES = 8
"""Decode steps of a session, behind a prompt of the first length; a worker that computes only prompts has none."""
PLAIN = Sampling(seed=0)


class IdleSteps:
    """Says when an idle worker measures, plans the steps, and learns from them. `now` is in s of any one clock."""

    def __init__(self, blocks: BlockManager, fit: StepFit, most_tokens: int, *, decodes: bool) -> None:
        """Teaches `fit`. `most_tokens`: of a step, and of a text. `decodes`: this worker decodes, too."""
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
        """Notes that a step of requests has run, from which the costs were learned."""
        self._due = max(self._due, now + EVERY_S)

    def begin(self, now: float) -> list[Plan]:
        """Begins a session. Returns its steps, in order: none where the blocks have no room for it."""
        self._begun, self._due = now, now + EVERY_S
        lengths = [min(length, self._most_tokens) for length in PROMPTS]
        if self._decodes:
            lengths = [length for length in lengths if length == lengths[0]]
        behind = DECODES if self._decodes else 0
        self._tables = self._blocks.allocate(min(max(lengths) + behind, self._most_tokens))
        if self._tables is None:
            return []
        self._sessions += 1
        room = min(self._most_tokens, self._blocks.capacity(self._tables))  # a window may begin with less
        works = [self._work(0, min(length, room)) for length in lengths]
        first = min(lengths[0], room)
        works += [self._work(first + at, 1, at + 1) for at in range(min(behind, room - first))]
        return [Plan(-number, [work]) for number, work in enumerate(works, 1)]

    def took(self, plan: Plan, seconds: float) -> None:
        """Learns what a step of the session took."""
        (work,) = plan.works
        if work.output_index:
            self._fit.learn(StepWork(sequences=1, context=work.start + 1), seconds)
        else:
            tokens = len(work.token_ids)
            self._fit.learn(StepWork(prompt_tokens=tokens, pairs=pairs_of(0, tokens)), seconds)

    def is_over(self, now: float) -> bool:
        """Tells whether a session has taken long enough."""
        return now - self._begun > SESSION_S

    def end(self, now: float) -> None:
        """Ends a session: gives the blocks back, none of whose texts the cache knows."""
        if self._tables is not None:
            self._blocks.free(self._tables)
            self._tables = None
        self._due = now + max(EVERY_S, (now - self._begun) / SHARE)

    def _work(self, start: int, tokens: int, output_index: int = 0) -> Work:
        assert self._tables is not None
        sequence = -self._sessions  # of no request; a device may keep something of one from step to step
        return Work(sequence, start, [0] * tokens, self._tables, PLAIN, output_index=output_index)
