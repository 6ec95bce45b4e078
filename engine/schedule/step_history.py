"""The collected steps of a worker: the costs learned from them, and their counts, for the load report."""

from bisect import bisect_left
from collections.abc import Sequence as Counts

from engine.schedule.chunking import Chunking
from infra.redis.worker_load import STEP_SIZES
from pricing.roofline.device_use import StepTotals
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepWork

NEWEST_STEP_WEIGHT = 0.1
"""Weight of the newest step in the moving average of a step's seconds."""


class StepHistory:
    """The steps of one worker so far."""

    def __init__(self, chunking: Chunking, fit: StepFit) -> None:
        """`chunking` and `fit` learn from each step too."""
        self.chunking = chunking
        self.fit = fit
        self.usual_s = 0.0  # moving average of a step's seconds
        self.steps = 0
        self.totals = StepTotals()
        self._sizes = [0] * (len(STEP_SIZES) + 1)

    def learn(self, work: StepWork, durations: Counts[float], proposing: float = 0.0) -> None:
        """Learns from steps of these seconds, each with a token more of every sequence than the one before.

        `work`: of the first step; `proposing`: seconds of each step in which drafts were proposed.
        """
        if not durations:
            return
        self.chunking.learn(work.prompt_tokens, work.sequences, durations)
        usual_s = self.usual_s if self.steps else durations[0]
        for seconds in durations:
            usual_s += NEWEST_STEP_WEIGHT * (seconds - usual_s)
        self.usual_s = usual_s
        self.steps += len(durations)
        self.totals = self.totals.and_steps(work, durations)
        if proposing:
            durations = [seconds - min(proposing, seconds / 2) for seconds in durations]
        self.fit.learn_in_a_row(work, durations)

    def count_size(self, tokens: int, steps: int) -> None:
        """Counts `steps` steps that had `tokens` tokens together, in equal shares."""
        self._sizes[bisect_left(STEP_SIZES, tokens // steps)] += steps

    def sizes(self) -> tuple[int, ...]:
        """Returns how many steps had at most each of `STEP_SIZES` tokens and more than the size before."""
        return tuple(self._sizes)
