"""Decides how many draft tokens a step verifies of each sequence: as many as make its tokens come fastest, often none.

Of a step's seconds each sequence has a share s. With d draft tokens the sequence is expected to get

    T(d) = 1 + q₁ + q₁q₂ + … + q₁…q_d    tokens,  in    S(d) = s + f + c d    seconds,

and the best d has the greatest T(d) / S(d): one more draft token is worth it while the tokens that it brings for its
seconds, q₁…q_d+1 / c, are more than that. (Leviathan et al., 2023, choose one d for all sequences from one rate; here
rates and costs are those of the moment.) Each term has one estimator:

- qᵢ, the chance that a draft token is accepted if the one before it was: the acceptance rates of all sequences by
  evidence, and the sequence's own odds beside them (`acceptance_rates.py`). In a tree, T(d) adds up the branches.
- s, the share without draft tokens: the fit of what all steps cost (`pricing/fit.py`), by batch and context.
- f and c of a proposer that reads texts: rows of logits, whose cost the same fit knows, be there any drafts or not.
- f and c of the executor's proposer: its passes are in no row, so they are measured. f is 0, and c the difference
  between steps with the limit and steps without draft tokens (`limit_trials.py`).

A proposer that reads texts offers what it finds, and each sequence takes the best d of that. The executor's proposer
drafts for all sequences in the same passes, so there a sequence has the limit, or nothing if it does far worse than
others. The limit itself is the one of 0, 1, 2, 4 … whose tokens come fastest, by measured seconds of whole steps: of
texts it is all or nothing, which tells whether looking pays at all. Where 0 is best the executor's proposer rests;
looks into texts go on, a few, since nothing else would find a text that begins to repeat itself. Where a step is bound
by computing, a row costs as much as a sequence, and no draft token pays.
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
from pricing.fit import StepFit

GO_ON_RATIO, BEGIN_RATIO = 1.03, 1.08
"""How much faster a sequence has to be with draft tokens than without, to go on with them and to begin again. What is
about even does not flicker, and is left out."""
LEAVE_OUT_RATIO = 0.75
"""A sequence is left out of the executor's drafts where its tokens come this much slower than without them."""
COMPANY_DECAY = 0.95
"""Weight of a step's number of drafting sequences, which share the cost f, when the next step with any has come."""
STEP_DECAY = 0.99
"""Weight of a step's tokens when the next step with draft tokens has come: some hundred count."""
PRIOR_STEPS = 8.0
"""Steps with one expected token beyond the first, and one given, that the record begins with."""
PROBE_STEPS, PROBE_DRAFTS = 128, 2
"""Every so many steps one sequence gets so many draft tokens against what is known, or no change would be noticed."""
LOOK_SECONDS, LOOK_SHARE = 1e-5, 0.005
"""Seconds of a look into a text, about, and the share of the time that looks may take where drafting does not pay."""


class PlannedDecodes(NamedTuple):
    """What is expected of a step's decodes, and the limit that it tries."""

    sequences: int
    seconds: float  # predicted, of the step without draft tokens
    tried: TriedLimit
    extra_tokens: float  # expected of a sequence beyond its first


class DraftController:
    """Chooses numbers of draft tokens, and learns from steps."""

    def __init__(self, fit: StepFit, most: int, in_engine: bool, tree: Sequence[int] = ()) -> None:
        """Allows up to `most` draft tokens of a sequence; `in_engine`: the executor drafts them when asked.

        `fit` learns what the scheduler's steps cost. `tree`: the parents of the draft tokens, in the order in which
        they are worth it, as `Work.parents`; empty: a chain.
        """
        self._fit = fit
        self._in_engine = in_engine
        self._most = most
        self._tree = tuple(tree)
        self._trials = LimitTrials([0, *_powers(most), most] if in_engine else [0, most])
        self._rates = AcceptanceRates()
        self._share = self._draft = self._first = 0.0  # s, c and f
        self._company = 1.0  # sequences with draft tokens in a step that has any, on average
        self._since_probe = 0
        self._given = self._expected = PRIOR_STEPS  # tokens beyond one a step, and those that were expected
        self._extra = self._extra_tokens()
        self._tokens = [1.0 + extra for extra in self._extra]
        self.allowed = most  # draft tokens of a sequence in the step that is planned

    def begin(self, sequences: int, context: int, steps: int = 1) -> PlannedDecodes:
        """Chooses the limit of a step in which `sequences` decode, of `context` tokens together.

        It is `steps` behind the last one that was chosen for.
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
        """Records a step of nothing but decodes: its seconds, and the tokens of all its sequences."""
        if step.seconds > 0:
            self._trials.learn(step.tried, seconds / step.seconds)
        if step.tried.settled and step.tried.arm:
            self._given = STEP_DECAY * self._given + tokens / step.sequences - 1
            self._expected = STEP_DECAY * self._expected + step.extra_tokens

    def _extra_tokens(self) -> list[float]:
        """Returns by limit the tokens beyond one that a sequence's step is expected to give.

        Whether a text repeats itself is not known beforehand: its steps are expected to give what others gave.
        """
        if not self._in_engine:
            return [0.0, 1.0]
        tokens = self._rates.tokens(self._most, self._tree)
        return [tokens[limit] - 1 for limit in self._trials.limits]

    @property
    def pays(self) -> bool:
        return self.allowed > 0

    @property
    def tries(self) -> bool:
        """Whether `begin` is to be called for the next step, too: a limit is being tried."""
        return self._trials.tries

    @property
    def long_rest(self) -> int:
        """Steps between two looks into a sequence's text where draft tokens do not pay."""
        return int(LOOK_SECONDS / (LOOK_SHARE * self._share)) + 1 if self._share else 1

    def count(self, trust: Trust, evidence: int, offered: int) -> int:
        """Returns how many of a sequence's `offered` draft tokens are verified; the first has this `evidence`."""
        if not self._share or not self._draft:
            return min(offered, self.allowed) if self._in_engine else offered  # nothing is known
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
        """Adds draft token after draft token of a chain, while that makes the sequence's tokens come faster."""
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
        """Records what came of a sequence's draft tokens; returns the seconds that they have saved, or cost."""
        self._rates.learn(trust, evidence, judged)
        return sum([right for _, right in judged]) * self._share - proposed * self._draft - self._first


def _powers(most: int) -> list[int]:
    return [1 << bit for bit in range((most - 1).bit_length())]
