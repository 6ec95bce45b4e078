"""Chooses for each sequence of a step the number of draft tokens that gives the most tokens per second, often none.

Let s be the sequence's share of the step's seconds, and q_i the chance that draft token i is accepted if draft token i
- 1 was. With d draft tokens the sequence is expected to get

    T(d) = 1 + q_1 + q_1 q_2 + … + q_1 … q_d    tokens,  in    S(d) = s + f + c d    seconds.

The best d maximizes T(d) / S(d): another draft token is worth it while q_1 … q_(d+1) / c is more than that. (Leviathan
et al., 2023, choose one d for all sequences from one rate; here rates and costs are the current ones.) Estimators:

- q_i: the acceptance rates of all sequences by evidence, times the sequence's own odds (`acceptance_rates.py`). In a
  tree, T(d) adds up the branches.
- s: the fitted cost of all steps (`pricing/step_costs/fit.py`), by batch and context.
- f and c of a proposer that reads texts: rows of logits, whose cost the same fit predicts.
- f and c of the executor's proposer: f is 0, and c is the measured difference between steps with the limit and steps
  without draft tokens (`limit_trials.py`), since its passes are not rows of the step.

A proposer that reads texts offers all draft tokens that it finds, and each sequence takes the best d of them. The
executor's proposer drafts for all sequences in the same passes, so a sequence gets the limit, or nothing if its
acceptance rate is far lower than that of others. The limit is the fastest of 0, 1, 2, 4, … by measured seconds of whole
steps. For texts it is 0 or all, which decides whether lookups pay at all. Where 0 is best the executor's proposer
rests, but a few lookups into texts go on, to notice a text that begins to repeat itself. Where a step is compute-bound,
a row costs as much as a sequence, and no draft token pays.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.speculation.control.acceptance_rates import (
    MAX_EVIDENCE,
    AcceptanceRates,
    JudgedDrafts,
    Trust,
    rate_at_odds,
)
from engine.speculation.control.limit_trials import LimitTrials, TriedLimit
from pricing.step_costs.fit import StepFit

GO_ON_RATIO, BEGIN_RATIO = 1.03, 1.08
"""Speed with draft tokens / speed without, required to continue drafting and to begin it. The gap is a hysteresis."""
LEAVE_OUT_RATIO = 0.75
"""A sequence gets none of the executor's draft tokens if its speed with them, relative to without, is below this."""
COMPANY_DECAY = 0.95
"""Decay of the average number of drafting sequences, over steps with any; they share the cost f."""
STEP_DECAY = 0.99
"""Decay in the record of tokens of steps with draft tokens: an average over about 100 steps."""
PRIOR_STEPS = 8.0
"""Prior weight in steps: one expected token beyond the first, and one actual."""
PROBE_STEPS, PROBE_DRAFTS = 128, 2
"""Steps between two probes, in which one sequence gets this many draft tokens although they should not pay."""
LOOK_SECONDS, LOOK_SHARE = 1e-5, 0.005
"""Approximate seconds of a lookup in a text, and the maximum share of time for lookups where drafting does not pay."""


class PlannedDecodes(NamedTuple):
    """Predictions for a step's decodes, and the limit that it tries."""

    sequences: int
    seconds: float  # predicted for the step without draft tokens
    tried: TriedLimit
    extra_tokens: float  # expected of a sequence beyond its first token


class DraftController:
    """Chooses the number of draft tokens, and learns from steps."""

    def __init__(self, fit: StepFit, max_drafts: int, in_engine: bool, tree: Sequence[int] = ()) -> None:
        """`max_drafts`: maximum draft tokens of a sequence. `in_engine`: the executor drafts them when asked.

        `fit` learns the costs of the scheduler's steps. `tree`: parents of the draft tokens, most valuable first, as
        `Work.parents`; empty: a chain.
        """
        self._fit = fit
        self._in_engine = in_engine
        self._max_drafts = max_drafts
        self._tree = tuple(tree)
        self._trials = LimitTrials([0, *_powers(max_drafts), max_drafts] if in_engine else [0, max_drafts])
        self._rates = AcceptanceRates()
        self._share = self._draft = self._first = 0.0  # s, c and f
        self._company = 1.0  # average sequences with draft tokens, over steps with any
        self._since_probe = 0
        self._given = self._expected = PRIOR_STEPS  # tokens beyond one per step: actual, and expected
        self._extra = self._extra_tokens()
        self._tokens = [1.0 + extra for extra in self._extra]
        self.allowed = max_drafts  # maximum draft tokens of a sequence in the step being planned

    def begin(self, sequences: int, context: int, steps: int = 1) -> PlannedDecodes:
        """Chooses the limit of a step in which `sequences` decode, with `context` tokens together.

        `steps`: steps since the last choice.
        """
        seconds = self._fit.costs.decode_seconds(sequences, context)
        if not self._trials.tries:
            self._extra = self._extra_tokens()
            self._tokens = [1 + self._given / self._expected * extra for extra in self._extra]
        tried = self._trials.begin(sequences, self._tokens, steps)
        self.allowed = self._trials.limits[tried.arm]
        costs = self._fit.costs
        self._share, self._draft, self._first = seconds / sequences, costs.row, costs.rows / self._company
        if self._in_engine:
            self._draft, self._first = self._share * self._trials.draft_seconds(tried), 0.0
        self._since_probe += steps
        return PlannedDecodes(sequences, seconds, tried, self._extra[tried.arm])

    def verifies(self, sequences: int) -> None:
        self._company += (1 - COMPANY_DECAY) * (sequences - self._company)

    def took(self, step: PlannedDecodes, seconds: float, tokens: int) -> None:
        """Records a step of decodes only: its seconds, and the tokens of all its sequences."""
        if step.seconds > 0:
            self._trials.learn(step.tried, seconds / step.seconds)
        if step.tried.settled and step.tried.arm:
            self._given = STEP_DECAY * self._given + tokens / step.sequences - 1
            self._expected = STEP_DECAY * self._expected + step.extra_tokens

    def _extra_tokens(self) -> list[float]:
        """Returns by limit the expected tokens of a sequence's step beyond one.

        Whether a text repeats itself is unknown in advance, so a step is expected to give the average of earlier steps.
        """
        if not self._in_engine:
            return [0.0, 1.0]
        tokens = self._rates.tokens(self._max_drafts, self._tree)
        return [tokens[limit] - 1 for limit in self._trials.limits]

    @property
    def pays(self) -> bool:
        return self.allowed > 0

    @property
    def tries(self) -> bool:
        """Whether a limit is being tried, so that `begin` must be called for the next step too."""
        return self._trials.tries

    @property
    def long_rest(self) -> int:
        """Steps between two lookups in a sequence's text where draft tokens do not pay."""
        return int(LOOK_SECONDS / (LOOK_SHARE * self._share)) + 1 if self._share else 1

    def count(self, trust: Trust, evidence: int, offered: int) -> int:
        """Returns how many of a sequence's `offered` draft tokens are verified; the first has this `evidence`."""
        if not self._share or not self._draft:
            return min(offered, self.allowed) if self._in_engine else offered  # no measurements yet
        if self._in_engine:
            count = self._all_or_none(trust, min(offered, self.allowed))
        else:
            count = self._of_text(trust, evidence, offered)
        if not count and self._since_probe >= PROBE_STEPS:
            self._since_probe = 0
            return min(PROBE_DRAFTS, offered)
        return count

    def _all_or_none(self, trust: Trust, offered: int) -> int:
        if trust.odds < 1:
            tokens = self._rates.tokens(offered, self._tree, trust.odds)[-1]
            if tokens * self._share < LEAVE_OUT_RATIO * (self._share + offered * self._draft):
                return 0
        return offered

    def _of_text(self, trust: Trust, evidence: int, offered: int) -> int:
        """Adds draft tokens of a chain while each raises the sequence's tokens per second."""
        share, draft, rates, odds = self._share, self._draft, self._rates.rates, trust.odds
        tokens, seconds, comes = 1.0, share + self._first, 1.0
        count, best = 0, (GO_ON_RATIO if trust.drafting else BEGIN_RATIO) / share
        for index in range(offered):
            comes *= rate_at_odds(rates[min(evidence + index, MAX_EVIDENCE)], odds)
            if comes * seconds <= draft * tokens:
                break
            tokens, seconds = tokens + comes, seconds + draft
            if tokens > best * seconds:
                count, best = index + 1, tokens / seconds
        trust.drafting = count > 0
        return count

    def learn(self, trust: Trust, evidence: int, proposed: int, judged: JudgedDrafts) -> float:
        """Records the acceptance of a sequence's draft tokens. Returns the seconds saved; negative if lost."""
        self._rates.learn(trust, evidence, judged)
        return sum([right for _, right in judged]) * self._share - proposed * self._draft - self._first


def _powers(end: int) -> list[int]:
    return [1 << bit for bit in range((end - 1).bit_length())]
